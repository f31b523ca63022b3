"""Who chooses the tokens that a row attends over, where an indexer does: pure functions of a step's routes.

A span whose context has more than `top_k` index keys selects; shorter ones attend to all that they see, and no score is
computed. A key stands for a token, or for `pool` consecutive ones, which lie in one block.
Scores are computed where the index keys lie, also of spans whose history is gathered: what travels is each holder's
best candidates of a row, never keys. Of a row, a holder offers as many as the final choice could take from it, so
the merged choice is exact (`hal.ranking`), and every rank that is to attend knows all of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from splash.layout.exchange import Counts, Routes
from splash.layout.holders import Topology, local_blocks
from splash.layout.layouts import Assignment


@dataclass(frozen=True, slots=True)
class Selecting:
    """The selecting spans of a step, by index; `shared` in the order of `Routes`' lists."""

    own: tuple[int, ...]
    """Chosen on every rank alike, from its full copy (tp)."""
    by_owner: tuple[tuple[int, ...], ...]
    """Per home: chosen there alone, where they attend (dop, dp)."""
    shared: tuple[int, ...]
    """Chosen by all ranks from candidates of all holders (dcp, cp, and whatever is gathered)."""
    offers: tuple[int, ...]
    """Candidates that each rank offers for each row of the shared spans."""

    @property
    def spans(self) -> frozenset[int]:
        return frozenset((*self.own, *self.shared, *(i for indices in self.by_owner for i in indices)))


def selecting(routes: Routes, topo: Topology, block_size: int, top_k: int, pool: int = 1) -> Selecting | None:
    """None if no span selects. The spans of `routes` are those of this step, positions included."""

    def chosen(*lists: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(i for indices in lists for i in indices if routes.spans[i].end // pool > top_k)

    own = chosen(routes.own)
    by_owner = tuple(chosen(*both) for both in zip(routes.to_owner, routes.full_local, strict=True))
    shared = chosen(routes.to_all, routes.full_striped, routes.gathered, routes.gathered_full)
    if not (own or shared or any(by_owner)):
        return None
    offers = []
    for rank in range(topo.ranks):
        held = [
            tokens_held(routes.spans[i].present, rank, routes.spans[i].end, topo, block_size) // pool
            for i in shared
        ]
        offers.append(min(top_k, max(held, default=0)))
    return Selecting(own, by_owner, shared, tuple(offers))


def tokens_held(at: Assignment, rank: int, end: int, topo: Topology, block_size: int) -> int:
    """Tokens of [0, end) whose latents and index keys lie on `rank` (MLA: one KV group)."""
    num_blocks = -(-end // block_size)
    local = local_blocks(at, rank, topo.group_of(rank), num_blocks, topo)
    missing = num_blocks * block_size - end if local and local[-1] == num_blocks - 1 else 0
    return len(local) * block_size - missing


def counts_candidates(routes: Routes, chosen: Selecting) -> Counts:
    """Ranked tokens (int64) that each rank gives to all."""
    rows = routes.count(chosen.shared)
    return [[rows * offered] * routes.ranks for offered in chosen.offers]
