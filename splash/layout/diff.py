"""A switch is a set difference: target minus present is copied, present minus target is released."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from splash.layout.holders import Topology, holders
from splash.layout.layouts import Assignment


class Copy(NamedTuple):
    """One page to receive: (block, group) from rank `src` to rank `dst`."""

    block: int
    group: int
    src: int
    dst: int


@dataclass(frozen=True, slots=True)
class Difference:
    copies: tuple[Copy, ...]
    releases: tuple[tuple[int, int, int], ...]
    """(block, group, rank) that hold a page now and need none afterwards."""

    def received(self, ranks: int) -> list[int]:
        """Pages that each rank receives."""
        counts = [0] * ranks
        for copy in self.copies:
            counts[copy.dst] += 1
        return counts


def difference(
    present: Sequence[Sequence[Collection[int]]], target: Assignment, topo: Topology
) -> Difference:
    """What must be copied and released so that `present[block][group]` (ranks holding a valid page)
    becomes `holders(target)`.

    Sources are spread over the ranks that have the page, so that no rank sends everything. Between two placements the
    copies repeat after as many blocks as there are ranks.
    """
    copies: list[Copy] = []
    releases: list[tuple[int, int, int]] = []
    for block, groups in enumerate(present):
        for group, have in enumerate(groups):
            want = holders(target, block, group, topo)
            sources = sorted(have)
            for dst in want:
                if dst not in have:
                    copies.append(Copy(block, group, sources[(dst + block) % len(sources)], dst))
            releases += [(block, group, rank) for rank in sources if rank not in want]
    return Difference(tuple(copies), tuple(releases))


def present_holders(at: Assignment, num_blocks: int, topo: Topology) -> list[list[tuple[int, ...]]]:
    """`holders` of every block and group: the state of a request at rest under `at`."""
    return [[holders(at, b, g, topo) for g in range(topo.groups)] for b in range(num_blocks)]
