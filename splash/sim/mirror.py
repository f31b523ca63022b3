"""What a simulated executor knows of its requests: where they are and how long, and so what a step computes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from splash.layout.layouts import Assignment
from splash.layout.work import DecodeRows, PromptRows, Work
from splash.sched.step import StepPlan

Steps = NDArray[np.int64]
"""How many steps with decodes there have been, for each of the steps asked for."""


@dataclass(slots=True)
class Seen:
    """One request. A decode row sees `offset` + (number of steps with decodes so far) tokens, its own included."""

    at: Assignment
    known: int
    """Tokens known, as long as it does not decode."""
    offset: int = 0
    decoding: bool = False


class LengthMirror:
    """Applies plans; sums over decoding requests are kept as arrays, made anew only when one comes, goes or flips."""

    def __init__(self, keeps: float) -> None:
        """`keeps`: tokens that a row attends to at most."""
        self._keeps = keeps
        self._requests: dict[int, Seen] = {}
        self._steps = 0
        """Steps with decodes."""
        self._stale = True
        self._places: tuple[Assignment, ...] = ()
        self._rows: list[int] = []
        self._sums: NDArray[np.int64] = np.zeros(0, np.int64)
        self._offsets: NDArray[np.int64] = np.zeros(0, np.int64)
        self._member: NDArray[np.int64] = np.zeros(0, np.int64)

    def apply(self, plan: StepPlan) -> tuple[Work, int]:
        """The rows of the plan's step, and how many of them sample a token. Contexts are arrays of one step, so that
        they are computed as those of many steps are, to the last bit."""
        for request in plan.gone:
            if self._requests.pop(request, None) is not None:
                self._stale = True
        for admit in plan.admits:
            self._requests[admit.request] = Seen(admit.at, len(admit.tokens))
        for flip in plan.flips:
            self._requests[flip.request].at = flip.at
            self._stale = True
        decodes = self._decodes(self._steps + np.arange(1, 2)) if plan.decodes else ()
        if plan.decodes:
            self._steps += 1
        prompts = tuple(
            PromptRows(self._requests[c.request].at, c.method, c.start, c.count) for c in plan.chunks
        )
        sampled = len(plan.decodes)
        for chunk in plan.chunks:
            seen = self._requests[chunk.request]
            if chunk.start + chunk.count == seen.known:
                seen.decoding = True
                seen.offset = seen.known - self._steps
                self._stale = True
                sampled += 1
        return Work(decodes, prompts, sampled), sampled

    def ahead(self, num_steps: int) -> Work:
        """The next `num_steps` steps, of the present decodes alone, as one work whose contexts are arrays."""
        decodes = self._decodes(self._steps + np.arange(1, num_steps + 1))
        return Work(decodes, (), sum(d.rows for d in decodes))

    def advance(self, num_steps: int) -> None:
        self._steps += num_steps

    def _decodes(self, step: Steps) -> tuple[DecodeRows, ...]:
        if self._stale:
            self._gather([seen for seen in self._requests.values() if seen.decoding])
        rows, groups = self._rows, range(len(self._places))
        context = [self._sums[g] + rows[g] * step for g in groups]
        selected = context if math.isinf(self._keeps) else self._selected(step)
        return tuple(DecodeRows(at, rows[g], context[g], selected[g]) for g, at in enumerate(self._places))

    def _selected(self, step: Steps) -> list[Steps]:
        lengths = np.add.outer(step, self._offsets)
        kept = np.minimum(lengths, int(self._keeps))
        return [kept[..., self._member == g].sum(axis=-1) for g in range(len(self._places))]

    def _gather(self, decoding: Iterable[Seen]) -> None:
        by_place: dict[Assignment, list[int]] = {}
        for seen in decoding:
            by_place.setdefault(seen.at, []).append(seen.offset)
        self._places = tuple(by_place)
        self._rows = [len(offsets) for offsets in by_place.values()]
        self._sums = np.array([sum(offsets) for offsets in by_place.values()], np.int64)
        self._offsets = np.array([offset for offsets in by_place.values() for offset in offsets], np.int64)
        self._member = np.repeat(np.arange(len(self._rows)), self._rows)
        self._stale = False
