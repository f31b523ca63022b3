"""One request's KV on its way to another placement: reserve, copy in the background, be ready to flip."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from splash.kv.blocks import KVStore
from splash.kv.pool import PageState
from splash.layout.diff import Copy, difference, present_holders
from splash.layout.holders import Topology
from splash.layout.layouts import Assignment
from splash.sched.bound import Bound
from splash.sched.copies import CopyGroup, CopyLedger, Draft
from splash.sched.record import Record
from splash.sched.step import PageGrant


@dataclass(slots=True, eq=False)
class Staging:
    """A staged move of one request. It ends by a flip or by being cancelled; both are legal at any time."""

    next: Assignment
    started_step: int
    """The first step in which appends are shadowed; copies cover the tokens committed before it."""
    bound: Bound
    group: CopyGroup
    grants: tuple[PageGrant, ...] = ()
    """Pages of the next placement, to be announced with the staging."""
    announced: bool = False
    """The executors know of it (a plan carried its Stage)."""
    links: tuple[tuple[int, ...], ...] = ()
    """[source][destination] bytes."""

    @property
    def ready(self) -> bool:
        return self.group.complete and (self.announced or not self.grants)


def begin_staging(
    record: Record,
    target: Assignment,
    *,
    store: KVStore,
    ledger: CopyLedger,
    token_bytes: int,
    margin: int,
    step: int,
    avoid: Collection[int],
) -> list[int]:
    """Reserve every page that `record` lacks under `target`, all or nothing, and queue its copies.

    Returns the ranks that lack the room (less `margin` pages each), or that it needs and shall `avoid`; if there are
    any, nothing changed. `step` is the first shadowed step: tokens below `record.computed` are copied, later ones
    are written to both places.
    """
    blocks = record.blocks
    need = store.missing(blocks, target, 0, len(blocks))
    lacking = store.lacking(need, margin) or [r for r in avoid if need[r]]
    if lacking:
        return lacking
    group = CopyGroup()
    grants = []
    size, ranks = store.block_size, store.topo.ranks
    num_whole = record.computed // size
    repeating = _copies(record.present, target, store.topo)
    links = [[0] * ranks for _ in range(ranks)]
    for index, block in enumerate(blocks):
        for kv_group, rank, page in store.add_copies(block, index, target, PageState.RESERVED):
            grants.append(PageGrant(record.id, index, kv_group, rank, page, index < num_whole))
        tokens = min(size, record.computed - index * size)
        if tokens > 0:
            num_bytes = tokens * token_bytes
            for _, kv_group, src, dst in repeating[index % ranks]:
                links[src][dst] += num_bytes
                ledger.add(Draft(group, src, dst, num_bytes, 0, tokens, block, kv_group))
    record.staging = Staging(
        target, step, Bound(step, ledger.busiest_bytes), group, tuple(grants), links=tuple(map(tuple, links))
    )
    return []


def _copies(present: Assignment, target: Assignment, topo: Topology) -> list[list[Copy]]:
    """The difference by block modulo the ranks: with these both placements, and so the sources, repeat."""
    found: list[list[Copy]] = [[] for _ in range(topo.ranks)]
    for copy in difference(present_holders(present, topo.ranks, topo), target, topo).copies:
        found[copy.block].append(copy)
    return found
