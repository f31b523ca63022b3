"""How long something in the background may take: twice its prediction, and some steps."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Bound:
    """Counted in the copy budget that was offered, not in steps, since the budget follows the time of a step.

    `needed_bytes` is what the busiest link had queued when it began, its own bytes included.
    """

    started_step: int
    needed_bytes: int
    offered_bytes: int = 0

    def offer(self, budget: int) -> None:
        """A step has passed in which `budget` bytes could be copied."""
        self.offered_bytes += budget

    def exceeded(self, step: int, *, slack: int, budget: int) -> bool:
        """Past twice the prediction and `slack` steps."""
        return (
            step - self.started_step > slack and self.offered_bytes > 2 * self.needed_bytes + slack * budget
        )

    def said(self, done: str, step: int, *, slack: int) -> str:
        """Why it is given up when it is exceeded; `done` tells what has come of it."""
        return f"{done} in {step - self.started_step} steps, past twice its prediction + {slack}"
