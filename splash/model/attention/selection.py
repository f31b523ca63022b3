"""Which tokens the rows of a step attend over, as a value that passes from layer to layer.

A layer with an indexer makes it, those after it reuse it: page ids are the same in all layers, so what one layer found
is named in slots that are good for all. None stands for "every row attends to all that it sees".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from splash.model.attention.index import Index
from splash.model.rope import RopeRows

NOWHERE = -(1 << 60)
"""In a table of blocks: this block does not lie here."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where tokens at positions [first, stop) of some rows' sequences lie here: in pages, in a piece of a history,
    among new entries.

    `table` int64 [sequences, blocks]: the slot of the first token of each block from that of `first` on, or NOWHERE;
    the other tokens of a block follow it. A slot is page * tokens of a page + offset. `sequence` int64 [rows].
    """

    table: torch.Tensor
    sequence: torch.Tensor
    first: int
    stop: int
    block_size: int

    def slots(self, positions: torch.Tensor) -> torch.Tensor:
        """`positions` [rows, k], -1 for none -> slots [rows, n] of those that lie here, -1 behind them; n <= k."""
        outside = (positions < self.first) | (positions >= self.stop)
        known = positions.masked_fill(outside, self.first)
        blocks = known // self.block_size - self.first // self.block_size
        slots = self.table[self.sequence[:, None], blocks] + known % self.block_size
        return _packed(slots.masked_fill_(outside | (slots < 0), -1))


def _packed(slots: torch.Tensor) -> torch.Tensor:
    """The slots of each row in front, without the columns that are empty in all rows."""
    width = int((slots >= 0).sum(1).max()) if slots.numel() else 0
    return slots if width == slots.shape[1] else slots.topk(width, dim=1).values


@dataclass(frozen=True, slots=True)
class PagedUse:
    """Selecting rows whose queries attend over this rank's pages."""

    chosen: Index
    """Which of the selecting rows."""
    queries: Index
    """Which of the queries there, ascending."""
    places: Places


@dataclass(frozen=True, slots=True)
class GatheredUse:
    """Selecting rows of a gathered span that attend on this rank."""

    chosen: slice
    """Which of the selecting rows."""
    parts: tuple[Places, ...]
    """One a piece of the history."""
    entries: Places
    """The span's own new tokens."""


@dataclass(frozen=True, slots=True)
class SelectingRows:
    """What one rank chooses, offers and uses in one step; built once for all layers with an indexer.

    The selecting rows are, in order: those of tp, those that this rank owns, the shared ones.
    """

    rows: Index
    """Rows of the step."""
    rope: RopeRows
    """The indexer's rotations of these rows."""
    prepared: Any
    """For the port: what is scored here."""
    tail: torch.Tensor | None
    """int64 [rows, pool - 1]: positions in the pool that ends behind a row, -1 for none; None: a key is a token's."""
    num_own: int
    num_owned: int
    num_shared: int
    offers: tuple[int, ...]
    """Candidates that each rank gives for each shared row."""
    own: PagedUse | None
    here: PagedUse | None
    gathers: tuple[GatheredUse | None, ...]
    """One a gather of the step; None: its span attends to everything."""


@dataclass(frozen=True, slots=True)
class Selected:
    """`queries` (ascending) of those that attend somewhere do so over `slots` [n, width] alone (-1: none)."""

    queries: Index
    slots: torch.Tensor


@dataclass(frozen=True, slots=True)
class Selection:
    """The chosen tokens of a step's selecting rows."""

    positions: torch.Tensor
    """int64 [selecting rows, k]: positions in the sequence, -1 for none, as far as this rank knows them."""
    agreed: torch.Tensor
    """Those of the rows that every rank knows."""
    own: Selected | None
    here: Selected | None
    gathers: tuple[tuple[torch.Tensor, ...] | None, ...]
    """Per gather: slots in each piece of the history, then among the span's own new tokens."""
