"""A plan that was handed out and whose result is not in: what the result will be about."""

from __future__ import annotations

from dataclasses import dataclass

from splash.sched.record import Record
from splash.sched.step import StepPlan

ByPlace = tuple[dict[str, int], list[int]]
"""Rows by layout and by rank."""


@dataclass(slots=True)
class Flight:
    """From `schedule` to `update`."""

    plan: StepPlan
    sampling: list[Record]
    """Whom the tokens of the result belong to, in their order."""
    num_flips: int
    """Requests that flipped before the step."""
    by_place: ByPlace | None = None
    """Its rows, once the background has counted them."""
