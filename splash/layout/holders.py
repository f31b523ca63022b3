"""Ownership is a function: which ranks hold a block's KV under an assignment."""

from __future__ import annotations

from dataclasses import dataclass

from splash.core.errors import ConfigError
from splash.layout.layouts import Assignment, Placement


@dataclass(frozen=True, slots=True)
class Topology:
    """T ranks and G KV groups of one attention group: G is 1 for MLA and min(KV heads, T) for GQA.

    Under `by_head`, group g is duplicated on T/G neighbouring ranks; the first of them is its
    designated rank, the one that sends on behalf of the group.
    """

    ranks: int
    groups: int

    def __post_init__(self) -> None:
        if self.ranks < 1 or self.groups < 1 or self.ranks % self.groups:
            raise ConfigError(f"{self.groups} KV groups do not divide {self.ranks} ranks")

    def group_of(self, rank: int) -> int:
        """The KV group that the heads of `rank` read."""
        return rank * self.groups // self.ranks

    def ranks_of(self, group: int) -> range:
        """The ranks whose heads read `group`, the designated one first."""
        width = self.ranks // self.groups
        return range(group * width, (group + 1) * width)


def holders(at: Assignment, block: int, group: int, topo: Topology) -> tuple[int, ...]:
    """Ranks that hold (block, group) under `at`, ascending. Never empty."""
    match at.layout.placement:
        case Placement.BY_HEAD:
            return tuple(topo.ranks_of(group))
        case Placement.OWNER:
            return (at.home,)
        case Placement.STRIPED:
            return ((block + at.home) % topo.ranks,)


def local_blocks(at: Assignment, rank: int, group: int, num_blocks: int, topo: Topology) -> range:
    """The blocks of [0, num_blocks) whose `group` lies on `rank`: `holders` read the other way."""
    match at.layout.placement:
        case Placement.BY_HEAD:
            return range(num_blocks if topo.group_of(rank) == group else 0)
        case Placement.OWNER:
            return range(num_blocks if at.home == rank else 0)
        case Placement.STRIPED:
            return range((rank - at.home) % topo.ranks, num_blocks, topo.ranks)
