"""What the scheduler shows of itself: loads for the policy, samples of the pools, rows by place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from splash.core.events import PoolSampled
from splash.kv.blocks import KVStore
from splash.kv.pool import PageState
from splash.layout.layouts import Assignment, Placement
from splash.sched.arriving import Arrived
from splash.sched.policy import Load
from splash.sched.queue import WaitingQueue
from splash.sched.record import Record
from splash.sched.shared import Shared
from splash.sched.target import Target


class PoolSamples:
    """Samples of the pools: one a period at most, and one when nothing is left to do."""

    def __init__(self, shared: Shared, waiting: WaitingQueue) -> None:
        self._shared = shared
        self._waiting = waiting
        self._next_s = 0.0
        self._rested = -1
        """The step after which nothing was left to do when that was last told."""

    def due(self, time_s: float) -> bool:
        return time_s >= self._next_s

    def take_when_due(self) -> None:
        now = self._shared.journal.now()
        if self.due(now):
            self._next_s = now + self._shared.config.sample_period_s
            self._take(now)

    def take_at_rest(self) -> None:
        """No step follows: what is still held, once."""
        if self._rested != self._shared.progress.collected:
            self._rested = self._shared.progress.collected
            self._take(self._shared.journal.now())

    def _take(self, now: float) -> None:
        shared, waiting = self._shared, len(self._waiting)
        collected = shared.progress.collected
        shared.journal.emit(pool_sample(now, shared.store, shared.running.values(), waiting, collected))


def load_of(
    step: int,
    running: Collection[Record],
    waiting: Collection[Record],
    target: Target,
    *,
    memory_bound: bool,
    arrived: Sequence[Arrived],
    refused: Collection[Target],
    decode_s: float | None,
    copy_bytes_per_s: float,
) -> Load:
    """The work at hand, for a policy."""
    return Load(
        step=step,
        lengths=[len(r.tokens) for r in running if r.decoding],
        outputs=[r.num_output for r in running if r.decoding],
        prompts=[(r.computed, r.remaining) for r in running if not r.decoding],
        waiting=[len(r.tokens) for r in waiting],
        memory_bound=memory_bound,
        target=target.name,
        striped_from=target.striped_from,
        arrived=arrived,
        refused=refused,
        decode_s=decode_s,
        copy_bytes_per_s=copy_bytes_per_s,
    )


def pool_sample(
    now: float, store: KVStore, running: Collection[Record], waiting: int, collected: int
) -> PoolSampled:
    """Pages by use; live pages under the present layout of their request, the rest of LIVE as retiring. What no step
    after `collected` reads is free, whether or not it has been put back."""
    held, unread = _live_pages(store, running), store.unread(collected)
    pages = []
    for pool in store.pools:
        live = held[pool.rank]
        counts = pool.counts()
        between = counts[PageState.LIVE] - sum(live.values())
        pages.append(
            {
                "free": counts[PageState.FREE] + unread[pool.rank],
                "weight": counts[PageState.WEIGHT],
                "reserved": counts[PageState.RESERVED],
                "retiring": counts[PageState.RETIRING] - unread[pool.rank] + between,
                "cached": counts[PageState.CACHED],
                "recurrent": counts[PageState.RECURRENT],
                **{name: count for name, count in live.items() if count},
            }
        )
    layouts = Counter(r.present.layout.name for r in running)
    staging = sum(1 for r in running if r.staging is not None)
    return PoolSampled(now, pages, dict(layouts), waiting, staging)


def _live_pages(store: KVStore, running: Collection[Record]) -> list[Counter[str]]:
    """By rank and layout: the pages that running requests hold in their present place."""
    topo = store.topo
    held: list[Counter[str]] = [Counter() for _ in range(topo.ranks)]
    for at, blocks in _blocks(running, topo.ranks).items():
        for index, times in enumerate(blocks):
            for rank, pages in enumerate(store.fresh(at, index)):
                held[rank][at.layout.name] += times * pages
    return held


def _blocks(running: Collection[Record], ranks: int) -> dict[Assignment, list[int]]:
    """By place: how many blocks have each index modulo the ranks, which is all that their holders depend on."""
    blocks: dict[Assignment, list[int]] = {}
    for (at, num_blocks), requests in Counter((r.present, len(r.blocks)) for r in running).items():
        rounds, rest = divmod(num_blocks, ranks)
        of_place = blocks.setdefault(at, [0] * ranks)
        for index in range(ranks):
            of_place[index] += requests * (rounds + (index < rest))
    return blocks


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
