"""How far the steps have come: numbers that the parts of the scheduler share."""

from __future__ import annotations

from dataclasses import dataclass

NEVER = -(10**9)


@dataclass(slots=True)
class Progress:
    """Indices of steps, each written by whom it happens to."""

    planned: int = -1
    """The last one planned."""
    collected: int = -1
    """The last one whose result is in."""
    short: int = NEVER
    """The last one for which memory was short."""
    stirred: int = 0
    """The first one that could see the last change of the load."""

    @property
    def in_flight(self) -> int:
        """Plans whose results are not in."""
        return self.planned - self.collected
