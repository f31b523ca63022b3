"""Which head shards of the attention weights must be resident on a rank."""

from __future__ import annotations

from collections.abc import Iterable

from splash.layout.layouts import Assignment, Placement, Projection


def full_ranks(at: Assignment, ranks: int) -> range:
    """Ranks that need every shard for a request under `at`; empty for sharded projections."""
    if at.layout.projection is Projection.SHARDED:
        return range(0)
    if at.layout.placement is Placement.OWNER:
        return range(at.home, at.home + 1)
    return range(ranks)


def shards(rank: int, assignments: Iterable[Assignment], ranks: int) -> frozenset[int]:
    """The head shards that `rank` must hold to compute requests under `assignments`."""
    if any(rank in full_ranks(at, ranks) for at in assignments):
        return frozenset(range(ranks))
    return frozenset((rank,))
