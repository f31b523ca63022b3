"""An open change of the target, and what it has cost so far."""

from __future__ import annotations

from dataclasses import dataclass, field

from splash.core.events import SwitchDone


@dataclass(slots=True)
class Switch:
    """Opened by a new target; closed when all requests are there, when it is replaced, or when it is given up."""

    old: str
    new: str
    reason: str
    started_step: int
    started_s: float
    flipped: set[int] = field(default_factory=set)
    kv_bytes: int = 0
    weight_bytes: int = 0
    max_boundary_s: float = 0.0
    given_up: bool = False
    """Some requests, or replicas, stay where they are: it closes as cancelled."""

    def closed(self, *, superseded: bool, step: int, now: float) -> SwitchDone:
        """The event that tells its end."""
        outcome = "superseded" if superseded else "cancelled" if self.given_up else "done"
        return SwitchDone(
            now,
            step,
            self.old,
            self.new,
            self.reason,
            outcome,
            step - self.started_step,
            len(self.flipped),
            self.kv_bytes + self.weight_bytes,
            self.weight_bytes,
            now - self.started_s,
            self.max_boundary_s,
        )
