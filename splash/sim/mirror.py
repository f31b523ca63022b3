"""What a simulated executor knows of its requests: where they are and how long, and so what a step computes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from splash.layout.layouts import Assignment
from splash.layout.work import DecodeRows, PromptRows, Tokens, Work
from splash.sched.step import StepPlan

Steps = int | NDArray[np.int64]
"""How many steps with decodes there have been: one number, or one for each of the steps asked for."""


@dataclass(slots=True)
class Seen:
    """One request, by what it can see."""

    at: Assignment
    known: int
    """Tokens known, as long as it does not decode."""
    row: int | None = None
    """Of the table of decodes."""


class Decodes:
    """A table of decoding requests. A row sees `offset` + (steps with decodes so far) tokens, its own included, so a
    step changes nothing in it, and a request that comes, goes or flips changes its own row only."""

    def __init__(self, keeps: float) -> None:
        """`keeps`: tokens that a row attends to at most."""
        self._keeps = keeps
        self._offsets = np.zeros(64, np.int64)
        self._places = np.zeros(64, np.int64)
        self._owners: list[Seen] = []
        self._index: dict[Assignment, int] = {}
        self._rows: list[int] = []
        self._sums: list[int] = []

    def add(self, seen: Seen, offset: int) -> None:
        row = len(self._owners)
        if row == len(self._offsets):
            self._offsets = np.resize(self._offsets, 2 * row)
            self._places = np.resize(self._places, 2 * row)
        place = self._index.setdefault(seen.at, len(self._index))
        if place == len(self._rows):
            self._rows.append(0)
            self._sums.append(0)
        self._owners.append(seen)
        self._offsets[row], self._places[row], seen.row = offset, place, row
        self._rows[place] += 1
        self._sums[place] += offset

    def remove(self, seen: Seen) -> int:
        """Its offset. The last row takes its place."""
        row = seen.row
        assert row is not None
        offset, place = int(self._offsets[row]), int(self._places[row])
        self._rows[place] -= 1
        self._sums[place] -= offset
        last = self._owners.pop()
        if last is not seen:
            end = len(self._owners)
            self._owners[row], last.row = last, row
            self._offsets[row], self._places[row] = self._offsets[end], self._places[end]
        seen.row = None
        return offset

    def rows(self, steps: Steps) -> tuple[DecodeRows, ...]:
        """By place; contexts are as `steps` is."""
        used = [(place, at, self._rows[place]) for at, place in self._index.items() if self._rows[place]]
        context = [self._sums[place] + rows * steps for place, _, rows in used]
        selected = (
            context if math.isinf(self._keeps) else self._selected(steps, [place for place, *_ in used])
        )
        return tuple(
            DecodeRows(at, rows, seen, kept)
            for (_, at, rows), seen, kept in zip(used, context, selected, strict=True)
        )

    def _selected(self, steps: Steps, used: list[int]) -> Iterable[Tokens]:
        """Of each place in use."""
        num_rows = len(self._owners)
        places = self._places[:num_rows]
        if isinstance(steps, int):
            kept = np.minimum(self._offsets[:num_rows] + steps, int(self._keeps))
            sums: list[float] = np.bincount(places, weights=kept).tolist()
            return [sums[place] for place in used]
        kept = np.minimum(np.add.outer(steps, self._offsets[:num_rows]), int(self._keeps))
        here = (places[:, np.newaxis] == np.array(used)).astype(np.float64)
        by_place: NDArray[np.float64] = (kept @ here).T
        return by_place


class LengthMirror:
    """Applies plans, and says what the rows of a step have to read."""

    def __init__(self, keeps: float) -> None:
        """`keeps`: tokens that a row attends to at most."""
        self._requests: dict[int, Seen] = {}
        self._decodes = Decodes(keeps)
        self._steps = 0
        """Steps with decodes."""

    def apply(self, plan: StepPlan) -> tuple[Work, int]:
        """The rows of the plan's step, and how many of them sample a token."""
        self.forget(plan.gone)
        for admit in plan.admits:
            self._requests[admit.request] = Seen(admit.at, len(admit.tokens))
        for requests, at in plan.flips:
            for request in requests:
                self._flip(self._requests[request], at)
        decodes: tuple[DecodeRows, ...] = ()
        if plan.decodes:
            self._steps += 1
            decodes = self._decodes.rows(self._steps)
        prompts = tuple(
            PromptRows(self._requests[c.request].at, c.method, c.start, c.count) for c in plan.chunks
        )
        sampled = len(plan.decodes)
        for chunk in plan.chunks:
            seen = self._requests[chunk.request]
            if chunk.start + chunk.count == seen.known:
                self._decodes.add(seen, seen.known - self._steps)
                sampled += 1
        return Work(decodes, prompts, sampled), sampled

    def forget(self, requests: Iterable[int]) -> None:
        """They have left; one that is not known is ignored."""
        for request in requests:
            seen = self._requests.pop(request, None)
            if seen is not None and seen.row is not None:
                self._decodes.remove(seen)

    def ahead(self, num_steps: int) -> Work:
        """The next `num_steps` steps, of the present decodes alone, as one work; the contexts of several are arrays."""
        ahead = 1 if num_steps == 1 else np.arange(1, num_steps + 1)
        decodes = self._decodes.rows(self._steps + ahead)
        return Work(decodes, (), sum(d.rows for d in decodes))

    def advance(self, num_steps: int) -> None:
        self._steps += num_steps

    def _flip(self, seen: Seen, at: Assignment) -> None:
        offset = None if seen.row is None else self._decodes.remove(seen)
        seen.at = at
        if offset is not None:
            self._decodes.add(seen, offset)
