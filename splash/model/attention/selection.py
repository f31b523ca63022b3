"""Which tokens the rows of a step attend over, as a value that passes from layer to layer.

A layer with an indexer makes it, those after it reuse it: page ids are the same in all layers, so what one layer found
is named in slots that are good for all. None stands for "every row attends to all that it sees".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from splash.model.attention.rows import Index
from splash.model.rope import RopeRows

NOWHERE = -(1 << 60)
"""In a table of blocks: this block does not lie here."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where the tokens of some rows' sequences lie here: in pages, in a piece of a history, among new entries.

    `table` int64 [sequences, blocks]: the slot of the first token of block `first_block` + j, or NOWHERE; the other
    tokens of a block follow it. A slot is page * tokens of a page + offset. `sequence` int64 [rows].
    """

    table: torch.Tensor
    sequence: torch.Tensor
    first_block: int
    block_size: int

    def slots(self, positions: torch.Tensor) -> torch.Tensor:
        """`positions` [rows, k], -1 for none -> slots [rows, n] of those that lie here, -1 behind them; n <= k."""
        blocks = positions.div(self.block_size, rounding_mode="floor") - self.first_block
        last = self.table.shape[1] - 1
        slots = self.table[self.sequence[:, None], blocks.clamp(0, last)] + positions % self.block_size
        slots = torch.where((blocks < 0) | (blocks > last) | (slots < 0), -1, slots)
        return _packed(slots)


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
    """Which of the queries there."""
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
    """`queries` of those that attend somewhere do so over `slots` [n, width] alone (-1: none)."""

    queries: Index
    slots: torch.Tensor


@dataclass(frozen=True, slots=True)
class Selection:
    """The chosen tokens of a step's selecting rows."""

    positions: torch.Tensor
    """int64 [selecting rows, k]: positions in the sequence, -1 for none, as far as this rank knows them."""
    own: Selected | None
    here: Selected | None
    gathers: tuple[tuple[torch.Tensor, ...] | None, ...]
    """Per gather: slots in each piece of the history, then among the span's own new tokens."""
