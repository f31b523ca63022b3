"""What the scheduler shows of itself: loads for the policy, samples of the pools, rows by place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from splash.core.events import PoolSampled
from splash.kv.blocks import KVStore
from splash.kv.pool import PageState
from splash.layout.holders import local_blocks
from splash.layout.layouts import Assignment, Placement
from splash.sched.policy import Load
from splash.sched.record import Record


def load_of(
    step: int, running: Collection[Record], waiting: Collection[Record], target: str, *, memory_bound: bool
) -> Load:
    """The work at hand, for a policy."""
    lengths = [len(r.tokens) for r in running]
    prompts = [r.remaining for r in running if not r.decoding]
    return Load(
        step=step,
        running=len(lengths),
        waiting=len(waiting),
        mean_context=sum(lengths) // len(lengths) if lengths else 0,
        max_context=max(lengths, default=0),
        prompt_left=sum(prompts),
        longest_prompt_left=max(prompts, default=0),
        waiting_prompt=max((len(r.tokens) for r in waiting), default=0),
        memory_bound=memory_bound,
        target=target,
    )


def pool_sample(now: float, store: KVStore, running: Collection[Record], waiting: int) -> PoolSampled:
    """Pages by use; live pages under the present layout of their request, the rest of LIVE as retiring."""
    topo = store.topo
    pages = []
    for pool in store.pools:
        live: Counter[str] = Counter()
        for record in running:
            count = sum(
                len(local_blocks(record.present, pool.rank, group, len(record.blocks), topo))
                for group in range(topo.groups)
            )
            live[record.present.layout.name] += count
        counts = pool.counts()
        between = max(0, counts[PageState.LIVE] - sum(live.values()))
        pages.append(
            {
                "free": counts[PageState.FREE],
                "weight": counts[PageState.WEIGHT],
                "reserved": counts[PageState.RESERVED],
                "retiring": counts[PageState.RETIRING] + between,
                "cached": counts[PageState.CACHED],
                **{name: count for name, count in live.items() if count},
            }
        )
    layouts = Counter(r.present.layout.name for r in running)
    staging = sum(1 for r in running if r.staging is not None)
    return PoolSampled(now, pages, dict(layouts), waiting, staging)


def rows_by(places: Mapping[Assignment, int], ranks: int) -> tuple[dict[str, int], list[int]]:
    """Rows by layout name, and by the ranks whose attention they ran on (replicated ones count on each)."""
    by_layout: Counter[str] = Counter()
    by_rank = [0] * ranks
    for at, count in places.items():
        by_layout[at.layout.name] += count
        if at.layout.placement is Placement.OWNER:
            by_rank[at.home] += count
        else:
            by_rank = [rows + count for rows in by_rank]
    return dict(by_layout), by_rank
