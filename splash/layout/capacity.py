"""KV capacity of a layout: arithmetic shared by planner, simulator and engine (REFERENCE §4)."""

from __future__ import annotations

from dataclasses import dataclass

from splash.layout.holders import Topology
from splash.layout.layouts import Layout, Placement, Projection


@dataclass(frozen=True, slots=True)
class PoolRoom:
    """Pages per rank that KV may use with only the own shard resident, and with every shard resident."""

    own: int
    full: int

    def pages(self, layout: Layout) -> int:
        return self.full if layout.projection is Projection.FULL else self.own


def pages_per_block(layout: Layout, topo: Topology) -> int:
    """Pages that one block takes over all ranks: T under by_head, G elsewhere (one page a KV group)."""
    return topo.ranks if layout.placement is Placement.BY_HEAD else topo.groups


def total_tokens(layout: Layout, room: PoolRoom, topo: Topology, block_size: int) -> int:
    """Distinct tokens that all ranks together hold under `layout`, whole blocks.

    by_head: every rank holds one page of each block. Owner and striped: a block is whole on one rank.
    """
    pages = room.pages(layout)
    if layout.placement is Placement.BY_HEAD:
        return pages * block_size
    return topo.ranks * (pages // topo.groups) * block_size


def request_tokens(layout: Layout, room: PoolRoom, topo: Topology, block_size: int) -> int:
    """The longest single request that fits: an owner must hold all of it, a stripe shares it out."""
    pages = room.pages(layout)
    match layout.placement:
        case Placement.BY_HEAD:
            return pages * block_size
        case Placement.OWNER:
            return pages // topo.groups * block_size
        case Placement.STRIPED:
            return pages // topo.groups * topo.ranks * block_size
