"""Recurrent state as pages: what a request keeps on every rank, whatever its length and layout.

KDA layers are sharded by head in all layouts, so a rank has its heads' state of every request, and none of it moves in
a switch. A state is rows, as a KV page is tokens: row r of a request lies in one of its pages at an offset, a kernel
looks the page up, and pages need not be neighbours (ADR 0009).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm

from splash.spec.model import ITEMSIZE, ModelSpec

MATRICES, TAPS, TAIL = "matrices", "taps", "tail"


@dataclass(frozen=True, slots=True)
class StateSection:
    """`rows` rows of `width` elements for each of `layers`, one after the other over a request's pages.

    `offset`: bytes before the first one, counted over these pages as if they were neighbours.
    """

    name: str
    layers: int
    rows: int
    width: int
    dtype: str
    offset: int = 0

    @property
    def row_bytes(self) -> int:
        return self.width * ITEMSIZE[self.dtype]

    @property
    def num_bytes(self) -> int:
        return self.layers * self.rows * self.row_bytes


@dataclass(frozen=True, slots=True)
class StateFormat:
    """The sections of one request's state on one rank. Made by `state_format`; pages are multiples of every row."""

    sections: tuple[StateSection, ...]
    page_bytes: int

    def __post_init__(self) -> None:
        for section in self.sections:
            assert self.page_bytes % section.row_bytes == section.offset % section.row_bytes == 0, (
                f"rows of {section.name} straddle pages"
            )

    @property
    def num_bytes(self) -> int:
        return max(section.offset + section.num_bytes for section in self.sections)

    @property
    def num_pages(self) -> int:
        """Pages that one request takes on each rank."""
        return -(-self.num_bytes // self.page_bytes)

    def section(self, name: str) -> StateSection | None:
        return next((s for s in self.sections if s.name == name), None)


def state_sections(spec: ModelSpec, ranks: int, dtype: str) -> tuple[StateSection, ...]:
    """What a request keeps on a rank beside its KV; nothing for models without recurrence and pools.

    `matrices`: S of the rank's heads, one key channel of a head a row, fp32. `taps`: the convolutions' last inputs,
    oldest token first, q, k and v of a head a row. `tail`: key and gate of each token of the indexer's unfinished pool,
    a token a row; every rank has them, since every rank computes them, so a pool can end under any layout.
    """
    sections: list[StateSection] = []
    if spec.kda is not None:
        kda, layers, heads = spec.kda, len(spec.kda_layers), spec.kda.num_heads // ranks
        sections.append(StateSection(MATRICES, layers, heads * kda.head_dim, kda.head_dim, "float32"))
        sections.append(StateSection(TAPS, layers, (kda.conv_kernel - 1) * 3 * heads, kda.head_dim, dtype))
    if spec.indexer is not None and spec.indexer.pool > 1:
        rows, width = spec.indexer.pool - 1, 2 * spec.indexer.head_dim
        sections.append(StateSection(TAIL, sum(spec.indexed), rows, width, dtype))
    return _laid_out(sections)


def row_alignment(sections: Sequence[StateSection]) -> int:
    """Bytes of which a page must be a multiple."""
    return lcm(*(section.row_bytes for section in sections))


def state_format(sections: tuple[StateSection, ...], page_bytes: int) -> StateFormat | None:
    """None if there is nothing to keep."""
    return StateFormat(sections, page_bytes) if sections else None


def _laid_out(sections: Sequence[StateSection]) -> tuple[StateSection, ...]:
    """The same with offsets, each a multiple of all rows' sizes."""
    placed: list[StateSection] = []
    step, end = row_alignment(sections), 0
    for s in sections:
        offset = -(-end // step) * step
        placed.append(StateSection(s.name, s.layers, s.rows, s.width, s.dtype, offset))
        end = offset + s.num_bytes
    return tuple(placed)
