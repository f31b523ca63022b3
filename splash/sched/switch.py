"""The target, the open change to it, and what that has cost so far."""

from __future__ import annotations

from dataclasses import dataclass, field

from splash.core.events import SwitchDone, TargetChanged
from splash.sched.copies import CopyLedger
from splash.sched.journal import Journal
from splash.sched.target import Target


@dataclass(slots=True)
class Switch:
    """Opened by a new target; closed when all requests are there, when it is replaced, or when it is given up."""

    old: Target
    new: Target
    reason: str
    started_step: int
    started_s: float
    flipped: set[int] = field(default_factory=set)
    flipped_step: int | None = None
    """The last one before which requests flipped."""
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
            self.old.name,
            self.new.name,
            self.reason,
            outcome,
            step - self.started_step,
            len(self.flipped),
            self.kv_bytes + self.weight_bytes,
            self.weight_bytes,
            now - self.started_s,
            self.max_boundary_s,
            self.old.striped_from,
            self.new.striped_from,
        )


class Course:
    """What all requests shall become, the switch that is open, and when something last got ahead towards it."""

    def __init__(self, target: Target, *, ledger: CopyLedger, journal: Journal) -> None:
        self.target = target
        self.switch: Switch | None = None
        self._ledger = ledger
        self._journal = journal
        self._seen = (0, 0)
        """(acknowledged copies, step) when something last got ahead."""

    def turn(self, target: Target, reason: str, predicted: dict[str, float], step: int) -> None:
        """Aim for `target`; a switch that is open is superseded."""
        self.close(step, superseded=True)
        old, self.target = self.target, target
        now, bounds = self._journal.now(), (old.striped_from, target.striped_from)
        self._journal.emit(TargetChanged(now, step, old.name, target.name, reason, predicted, *bounds))
        self.switch = Switch(old, target, reason, step, now)
        self.advance(step)

    def close(self, step: int, *, superseded: bool = False) -> None:
        if self.switch is not None:
            self._journal.emit(self.switch.closed(superseded=superseded, step=step, now=self._journal.now()))
            self.switch = None

    def flipped(self, request: int, step: int) -> None:
        self.advance(step)
        if self.switch is not None:
            self.switch.flipped.add(request)
            self.switch.flipped_step = step

    def flips_since(self, step: int) -> bool:
        """Requests flipped at a boundary after `step`: how long it took comes with the result of the step after it."""
        switch = self.switch
        return switch is not None and switch.flipped_step is not None and switch.flipped_step > step

    def give_up(self) -> None:
        """Some requests, or replicas, stay where they are."""
        if self.switch is not None:
            self.switch.given_up = True

    def arrived(self, kv_bytes: int, weight_bytes: int) -> None:
        """So many bytes of background copies have come in."""
        if self.switch is not None:
            self.switch.kv_bytes += kv_bytes
            self.switch.weight_bytes += weight_bytes

    def note_boundary(self, step: int, seconds: float) -> None:
        """The time before `step`: the switch's, if it was open then."""
        if self.switch is not None and self.switch.started_step < step:
            self.switch.max_boundary_s = max(self.switch.max_boundary_s, seconds)

    def advance(self, step: int) -> None:
        """Something got ahead in `step`."""
        self._seen = self._ledger.num_acknowledged, step

    @property
    def copying(self) -> bool:
        """Copies have completed since something last got ahead."""
        return self._ledger.num_acknowledged > self._seen[0]

    def idle_steps(self, step: int) -> int:
        """Steps since something last got ahead."""
        return step - self._seen[1]
