"""Where requests shall go: homes chosen so that the ranks' loads balance, and whether it fits at all."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from splash.kv.blocks import KVStore
from splash.layout.capacity import PoolRoom, request_tokens
from splash.layout.layouts import Assignment, Layout, Placement, assigned
from splash.sched.record import Record
from splash.sched.target import Target


def choose_goals(
    running: Sequence[Record], waiting: Collection[Record], target: Target, store: KVStore
) -> tuple[dict[int, Assignment], str | None]:
    """A goal per running request (by id), and why the target cannot be reached, if it cannot.

    Homes are kept where that fits; otherwise all are chosen anew.
    """
    goals = choose_homes(running, target, store)
    why_not = refusal(target, goals, running, waiting, store)
    if why_not is not None:
        spread = choose_homes(running, target, store, keep=False)
        if refusal(target, spread, running, waiting, store) is None:
            return spread, None
    return goals, why_not


def choose_homes(
    records: Sequence[Record], target: Target, store: KVStore, *, keep: bool = True
) -> dict[int, Assignment]:
    """A goal per record id. With `keep`, records already in (or on their way to) their placement keep their home; the
    others go, longest first, to the rank with the fewest tokens. A stripe's home is its offset."""
    load = [0] * store.topo.ranks
    goals: dict[int, Assignment] = {}
    homeless = []
    for record in records:
        layout = target.layout_of(len(record.tokens))
        if layout.placement is Placement.BY_HEAD:
            goals[record.id] = assigned(layout, 0)
            continue
        home = _kept_home(record, layout.placement) if keep else None
        if home is None and layout is not target.layout:
            home = stripe_offset(record, store)
        if home is None:
            homeless.append(record)
            continue
        goals[record.id] = assigned(layout, home)
        if layout is target.layout:
            load[home] += max(1, record.computed)
    for record in sorted(homeless, key=lambda r: -r.computed):
        home = load.index(min(load))
        goals[record.id] = assigned(target.layout, home)
        load[home] += max(1, record.computed)
    return goals


def stripe_offset(record: Record, store: KVStore) -> int:
    """Where the first block of a striped request lies that is a stranger among owners: in turn."""
    return record.id % store.topo.ranks


def balanced_homes(records: Sequence[Record], store: KVStore) -> dict[int, int]:
    """Owners for records of owner layouts, such that tokens balance, moving few: records leave the fullest
    rank for the emptiest while that narrows the gap, until it is below a quarter of the mean (or a few blocks),
    so that small differences move nothing. Returns the new home of those that move."""
    load = [0] * store.topo.ranks
    for record in records:
        load[record.goal.home] += record.computed
    tolerance = max(4 * store.block_size, sum(load) // (4 * len(load)))
    moves: dict[int, int] = {}
    for record in sorted(records, key=lambda r: -r.computed):
        full, empty = load.index(max(load)), load.index(min(load))
        gap = load[full] - load[empty]
        if record.goal.home == full and gap > tolerance and 0 < record.computed < gap:
            load[full] -= record.computed
            load[empty] += record.computed
            moves[record.id] = empty
    return moves


def tokens_held(records: Iterable[Record], layout: Layout, store: KVStore) -> list[int]:
    """Tokens by home of the requests that go to this placement, counting prompts that are still to be computed: a new
    request's home is the rank with the fewest. One home where the placement has none."""
    if layout.placement is Placement.BY_HEAD:
        return [0]
    held = [0] * store.topo.ranks
    for record in records:
        if record.goal.layout.placement is layout.placement:
            held[record.goal.home] += len(record.tokens)
    return held


def room(store: KVStore) -> PoolRoom:
    """Pages per rank for KV, with the own shard and with all shards resident."""
    return PoolRoom(store.geometry.kv_pages(1), store.geometry.kv_pages(store.topo.ranks))


def request_room(store: KVStore) -> PoolRoom:
    """`room` for the blocks of one request, beside its recurrent state."""
    pages = room(store)
    return PoolRoom(pages.own - store.state_pages, pages.full - store.state_pages)


def refusal(
    target: Target,
    goals: dict[int, Assignment],
    running: Sequence[Record],
    waiting: Iterable[Record],
    store: KVStore,
) -> str | None:
    """Why the target cannot be reached, with numbers; None if it fits when all has moved."""
    layout = target.layout
    pages = room(store).pages(layout)
    need = [store.state_pages * len(running)] * store.topo.ranks
    for record in running:
        own = store.missing((), goals[record.id], 0, len(record.blocks))
        need = [a + b for a, b in zip(need, own, strict=True)]
    worst = max(range(store.topo.ranks), key=lambda r: need[r])
    if need[worst] > pages:
        return (
            f"{layout} needs {need[worst]} KV pages on rank {worst} for {len(running)} running requests,"
            f" its pool has {pages} under that layout"
        )
    longest = max((r.limit - 1 for r in (*running, *waiting)), default=0)
    layout = target.layout_of(longest)
    holds = longest_held(layout, store)
    if longest > holds:
        return f"{layout} holds at most {holds} tokens of one request, one may cache {longest}"
    return None


def longest_held(layout: Layout, store: KVStore) -> int:
    """Tokens of one request that the pools hold under a layout."""
    return request_tokens(layout, request_room(store), store.topo, store.block_size)


def _kept_home(record: Record, placement: Placement) -> int | None:
    if record.staging is not None and record.staging.next.layout.placement is placement:
        return record.staging.next.home
    if record.running and record.present.layout.placement is placement:
        return record.present.home
    return None
