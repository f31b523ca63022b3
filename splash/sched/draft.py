"""A plan while it is being made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from splash.layout.layouts import Assignment
from splash.sched.record import Record
from splash.sched.step import (
    Admit,
    Chunk,
    Flip,
    PageCopy,
    PageGrant,
    PageMove,
    Resident,
    Shadow,
    ShardCopy,
    Stage,
    StateMove,
    StepPlan,
)


@dataclass(slots=True)
class PlanDraft:
    """Collects the parts of one StepPlan; `freeze` makes it."""

    step: int
    gone: list[int] = field(default_factory=list)
    admits: list[Admit] = field(default_factory=list)
    residents: list[Resident] = field(default_factory=list)
    state_moves: list[StateMove] = field(default_factory=list)
    grants: list[PageGrant] = field(default_factory=list)
    shadows: list[Shadow] = field(default_factory=list)
    moves: list[PageMove] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    flips: dict[int, Assignment] = field(default_factory=dict)
    """Request to where it flips."""
    decodes: tuple[int, ...] = ()
    chunks: list[Chunk] = field(default_factory=list)
    copies: tuple[PageCopy | ShardCopy, ...] = ()
    sampling: list[Record] = field(default_factory=list)
    """Whom its tokens will belong to, in their order; not told to executors."""

    @property
    def empty(self) -> bool:
        """Nothing in it that an executor must hear of now."""
        return not (
            self.decodes
            or self.chunks
            or self.copies
            or self.gone
            or self.residents
            or self.state_moves
            or self.moves
            or self.stages
            or self.flips
            or self.shadows
        )

    def forget(self, request: int) -> None:
        """The request leaves while the plan is being made."""
        self.admits = [a for a in self.admits if a.request != request]
        self.grants = [g for g in self.grants if g.request != request]
        self.moves = [m for m in self.moves if m.request != request]
        self.state_moves = [m for m in self.state_moves if m.request != request]
        self.flips.pop(request, None)
        self.stages = [s for s in self.stages if s.request != request]

    def freeze(self) -> StepPlan:
        return StepPlan(
            step=self.step,
            gone=tuple(self.gone),
            admits=tuple(self.admits),
            residents=tuple(self.residents),
            state_moves=tuple(self.state_moves),
            grants=tuple(self.grants),
            shadows=tuple(self.shadows),
            moves=tuple(self.moves),
            stages=tuple(self.stages),
            flips=_alike(self.flips) if self.flips else (),
            decodes=self.decodes,
            chunks=tuple(self.chunks),
            copies=self.copies,
        )


def _alike(flips: Mapping[int, Assignment]) -> tuple[Flip, ...]:
    """One flip for all requests that go to the same place."""
    requests: dict[Assignment, list[int]] = {}
    for request, at in flips.items():
        requests.setdefault(at, []).append(request)
    return tuple(Flip(tuple(together), at) for at, together in requests.items())
