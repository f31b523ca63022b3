"""What a policy that predicts was asked and answered, and how its predictions compare with what came."""

from __future__ import annotations

from typing import Any

from splash.core.events import PolicyAsked
from splash.engine.percentiles import spread

MAX_CHANGES = 1024
"""Answers that are kept of those that name another target: the first ones."""
MAX_STAYS = 128
"""Answers that are kept of those that stay, evenly spaced."""


class Decisions:
    """Folds questions; what it keeps is bounded, but for one number a question."""

    def __init__(self) -> None:
        self.num_asked = 0
        self._changes: list[PolicyAsked] = []
        self._stays: list[PolicyAsked] = []
        self._num_stays = 0
        self._stride = 1
        self._ratios: list[float] = []

    def event(self, event: PolicyAsked) -> None:
        self.num_asked += 1
        ratio = observed_over_predicted(event)
        if ratio is not None:
            self._ratios.append(ratio)
        if not event.is_change:
            self._stay(event)
        elif len(self._changes) < MAX_CHANGES:
            self._changes.append(event)

    def _stay(self, event: PolicyAsked) -> None:
        """Every `stride`th; when they are too many, every second of those goes."""
        if self._num_stays % self._stride == 0:
            self._stays.append(event)
        self._num_stays += 1
        if len(self._stays) > MAX_STAYS:
            self._stays = self._stays[::2]
            self._stride *= 2

    def to_json(self) -> list[dict[str, Any]]:
        """In the order of steps."""
        kept = sorted(self._changes + self._stays, key=lambda event: event.step)
        return [
            {
                "t": event.t,
                "step": event.step,
                "target": event.target,
                "target_striped_from": event.target_striped_from,
                "chosen": event.chosen,
                "chosen_striped_from": event.chosen_striped_from,
                "reason": event.reason,
                "predicted": event.predicted,
                "observed_s": event.observed_s,
            }
            for event in kept
        ]

    def prediction(self) -> dict[str, Any]:
        """`observed_over_predicted`: percentiles over the questions at which both were known of the target."""
        return {
            "asked": self.num_asked,
            "compared": len(self._ratios),
            "observed_over_predicted": spread(self._ratios, (5, 50, 95)),
        }


def observed_over_predicted(event: PolicyAsked) -> float | None:
    """Of the target's decode step; None where one of them is not known."""
    predicted_s = event.predicted.get(event.target)
    if event.observed_s is None or not predicted_s:
        return None
    return event.observed_s / predicted_s
