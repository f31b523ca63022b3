"""This rank's pages: views of the pool by layer and field, and the page table of each request."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from splash.kv.sections import PageFormat
from splash.layout.holders import Topology, holders, local_blocks
from splash.layout.layouts import Assignment, Placement
from splash.model.loader import DTYPES
from splash.spec.packing import Packing

NO_PAGE = -1


def page_fields(pool: torch.Tensor, pages: PageFormat) -> list[tuple[torch.Tensor, ...]]:
    """Views of the flat `pool` (uint8) as pages: per layer its fields [pages, block_size / pool, width]."""
    num_pages = pool.numel() // pages.page_bytes
    by_layer: list[list[torch.Tensor]] = [[] for _ in range(pages.num_layers)]
    for section in pages.sections:
        field = section.field
        view = pool.view(DTYPES[field.dtype]).as_strided(
            (num_pages, pages.block_size // field.pool, field.width),
            (pages.page_bytes // field.itemsize, field.width, 1),
            section.offset // field.itemsize,
        )
        by_layer[section.layer].append(view)
    return [tuple(fields) for fields in by_layer]


def page_packings(pages: PageFormat) -> list[tuple[Packing | None, ...]]:
    """Per layer, of each of its fields: how its entries are packed, None where they are numbers."""
    by_layer: list[list[Packing | None]] = [[] for _ in range(pages.num_layers)]
    for section in pages.sections:
        by_layer[section.layer].append(section.field.packing)
    return [tuple(packings) for packings in by_layer]


class LocalPages(NamedTuple):
    """The pages of one KV group that a rank reads for a request, in order of their blocks."""

    pages: npt.NDArray[np.int64]
    """[num_pages], of the table itself: good until it changes"""
    num_pages: int
    first_block: int
    block_step: int
    holds_last: bool
    """Whether the last block is among them."""


class HeldGroups:
    """Which KV groups of a block lie on one rank; memoised, the table is periodic in T."""

    def __init__(self, topo: Topology, rank: int) -> None:
        self.topo = topo
        self.rank = rank
        self._known: dict[tuple[Assignment, int], tuple[int, ...]] = {}

    def __call__(self, at: Assignment, block: int) -> tuple[int, ...]:
        key = at, block % self.topo.ranks
        known = self._known.get(key)
        if known is None:
            groups = range(self.topo.groups)
            known = tuple(group for group in groups if self.rank in holders(at, block, group, self.topo))
            self._known[key] = known
        return known


class PageTable:
    """Where the blocks of one request lie on this rank: every copy, present and staged alike.

    What is read follows from the assignment, so a flip touches nothing here. Entries of copies that were
    released stay until they are granted again; nobody reads them.
    """

    def __init__(self, held: HeldGroups) -> None:
        """`held`: of this rank, shared by all its tables."""
        self._held = held
        self._topo = topo = held.topo
        self._rank = held.rank
        self._pages = np.full((topo.groups, 16), NO_PAGE, dtype=np.int64)
        self._shadows: dict[tuple[int, int], int] = {}
        self._local: dict[int, tuple[tuple[Placement, int, int], LocalPages]] = {}

    def set(self, block: int, group: int, page: int) -> None:
        """(block, group) is `page` from now on; ends its shadow."""
        if block >= self._pages.shape[1]:
            wider = np.full_like(self._pages, NO_PAGE, shape=(self._topo.groups, 2 * block))
            wider[:, : self._pages.shape[1]] = self._pages
            self._pages = wider
        self._pages[group, block] = page
        self._shadows.pop((block, group), None)
        self._local.pop(group, None)

    def shadow(self, block: int, group: int, page: int) -> None:
        """Appends to (block, group) go to `page` too."""
        self._shadows[block, group] = page

    def targets(self, block: int, present: Assignment, staged: Assignment | None) -> list[tuple[int, int]]:
        """(group, page) that new tokens of `block` are written to on this rank."""
        groups = self._held(present, block)
        if staged is not None:
            groups = tuple(sorted({*groups, *self._held(staged, block)}))
        found: list[tuple[int, int]] = []
        for group in groups:
            found.append((group, int(self._pages[group, block])))
            if (block, group) in self._shadows:
                found.append((group, self._shadows[block, group]))
        return found

    def local(self, group: int, num_blocks: int, present: Assignment) -> LocalPages | None:
        """What this rank reads of the first `num_blocks` blocks; None if it has none of them."""
        key = present.layout.placement, present.home, num_blocks
        known = self._local.get(group)
        if known is not None and known[0] == key:
            return known[1]
        blocks = local_blocks(present, self._rank, group, num_blocks, self._topo)
        if not blocks:
            return None
        pages = self._pages[group, blocks.start : blocks.stop : blocks.step]
        found = LocalPages(pages, len(pages), blocks.start, blocks.step, blocks[-1] == num_blocks - 1)
        self._local[group] = key, found
        return found

    def between(self, group: int, first: int, stop: int, present: Assignment) -> torch.Tensor:
        """int64: this rank's pages of the blocks [first, stop) that it reads."""
        blocks = local_blocks(present, self._rank, group, stop, self._topo)
        skipped = len(local_blocks(present, self._rank, group, first, self._topo))
        mine = blocks[skipped:]
        return torch.from_numpy(self._pages[group, mine.start : mine.stop : mine.step].copy())
