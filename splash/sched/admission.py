"""Who is let in, and where: first come first served, while there is room."""

from __future__ import annotations

from collections.abc import Sequence

from splash.layout.layouts import Assignment, assigned
from splash.sched.draft import PlanDraft
from splash.sched.goals import room, stripe_offset, tokens_held
from splash.sched.growth import summed
from splash.sched.record import Record
from splash.sched.roster import Roster
from splash.sched.shared import Shared
from splash.sched.transition import Transitions


class Admission:
    """Admits while a request's whole prompt and its recurrent state fit beside those being computed."""

    def __init__(self, shared: Shared, *, roster: Roster, transitions: Transitions) -> None:
        self._store = shared.store
        self._roster = roster
        self._transitions = transitions
        self._config = shared.config
        self._progress = shared.progress
        self.open = True
        """False: who waits goes on waiting, so that the deployment empties."""
        self._blocked = False
        """The first in the queue does not fit, and nothing will come free by itself."""

    @property
    def full(self) -> bool:
        """As many run as may."""
        return len(self._roster.running) >= (self._config.max_running if self.open else 0)

    @property
    def idle(self) -> bool:
        """Nobody is admitted unless somebody arrives or leaves."""
        return not len(self._roster.waiting) or self._blocked or self.full

    def admit(self, draft: PlanDraft) -> None:
        """Start who fits, in order."""
        roster = self._roster
        promised: list[int] | None = None
        held: list[int] = []
        self._blocked = False
        state = [self._store.state_pages] * self._store.topo.ranks
        while (record := roster.waiting.peek()) is not None and not self.full:
            if promised is None:
                promised = self._promised()
                held = tokens_held(roster.running.values(), self._transitions.target.layout, self._store)
            goal = self._goal_for(record, held)
            need = self._store.missing((), goal, 0, self._store.num_blocks(len(record.tokens)))
            margin = self._config.watermark_pages if roster.running else 0
            if not self._fits(summed((need, promised, state)), margin):
                if self._store.collect(self._progress.collected):
                    continue
                self._progress.short = draft.step
                if self._transitions.drop_warm_replicas(self._progress.planned):
                    continue
                self._blocked = not self._store.num_retiring
                return
            roster.start(record, goal, draft)
            promised = summed((promised, need))
            held[goal.home] += len(record.tokens) if goal.layout is self._transitions.target.layout else 0

    def _goal_for(self, record: Record, held: Sequence[int]) -> Assignment:
        """The target's layout for its length; its home is the rank that holds least."""
        target = self._transitions.target
        layout = target.layout_of(len(record.tokens))
        if layout is not target.layout:
            return assigned(layout, stripe_offset(record, self._store))
        return assigned(layout, held.index(min(held)))

    def _fits(self, need: Sequence[int], margin: int) -> bool:
        """Room for it. While ranks are to be made full, the slots' room is left free for that."""
        if not self._store.fits(need, margin):
            return False
        if not self._roster.running or not self._transitions.growing:
            return True
        full = room(self._store).full
        return all(self._store.used(rank) + n <= full for rank, n in enumerate(need))

    def _promised(self) -> list[int]:
        """Pages that running prompts will still take, per rank."""
        needs = [[0] * self._store.topo.ranks]
        for record in self._roster.running.values():
            if not record.decoding:
                stop = self._store.num_blocks(len(record.tokens))
                needs += [
                    self._store.missing(record.blocks, at, len(record.blocks), stop)
                    for at in record.assignments
                ]
        return summed(needs)
