"""Recurrent states on a rank: the pool as rows, and where the rows of each request lie."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from splash.kv.state import MATRICES, TAIL, TAPS, StateFormat, StateSection
from splash.layout.exchange import Routes
from splash.model.loader import DTYPES
from splash.model.recurrent import RecurrentRows, StateRows, StateViews

NO_ROWS = torch.empty(0, 1, 0, dtype=torch.int64)


def state_views(pool: torch.Tensor, state: StateFormat) -> StateViews:
    """The flat `pool` (uint8) as rows of each section; rows of states are those that `StateTable` names."""
    whole = pool[: len(pool) // state.page_bytes * state.page_bytes]

    def rows(name: str) -> torch.Tensor:
        section = state.section(name)
        return (
            whole.new_empty(0)
            if section is None
            else whole.view(DTYPES[section.dtype]).view(-1, section.width)
        )

    return StateViews(rows(MATRICES), rows(TAPS), rows(TAIL))


class StateTable:
    """Where the recurrent state of one request lies on this rank."""

    def __init__(self, state: StateFormat, pages: Sequence[int]) -> None:
        self._state = state
        self.pages = np.array(pages, dtype=np.int64)
        self._rows: StateRows | None = None

    def move(self, place: int, page: int) -> None:
        """Page number `place` of the state is `page` from now on."""
        self.pages[place] = page
        self._rows = None

    @property
    def rows(self) -> StateRows:
        """n is 1."""
        if self._rows is None:
            self._rows = StateRows(*(self._section(name) for name in (MATRICES, TAPS, TAIL)))
        return self._rows

    def _section(self, name: str) -> torch.Tensor:
        section = self._state.section(name)
        return (
            NO_ROWS
            if section is None
            else torch.from_numpy(_rows(section, self.pages, self._state.page_bytes))
        )


def _rows(section: StateSection, pages: np.ndarray, page_bytes: int) -> np.ndarray:
    """int64 [layers, 1, rows]: which rows of the pool; rows straddle no page."""
    count = section.layers * section.rows
    place = section.offset + np.arange(count, dtype=np.int64) * section.row_bytes
    found = (pages[place // page_bytes] * page_bytes + place % page_bytes) // section.row_bytes
    return found.reshape(section.layers, 1, section.rows)


def recurrent_rows(routes: Routes, tables: Sequence[StateTable | None]) -> RecurrentRows | None:
    """Of the step's spans, whose states are `tables`; None for models without recurrent state."""
    known = [table for table in tables if table is not None]
    if not known:
        return None
    assert len(known) == len(tables), "every request has a state or none has"
    single = [i for i, span in enumerate(routes.spans) if span.count == 1]
    longer = [i for i, span in enumerate(routes.spans) if span.count > 1]
    return RecurrentRows(
        single=torch.tensor([routes.starts[i] for i in single], dtype=torch.int64),
        single_states=joined([known[i].rows for i in single]) if single else None,
        spans=tuple(
            (slice(routes.starts[i], routes.starts[i] + routes.spans[i].count), known[i].rows) for i in longer
        ),
    )


def joined(states: Sequence[StateRows]) -> StateRows:
    """The rows of several requests, request after request."""
    return StateRows(*(torch.cat(parts, dim=1) for parts in zip(*states, strict=True)))
