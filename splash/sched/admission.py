"""Who is let in, and where: first come first served, while there is room."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from splash.layout.layouts import Assignment, assigned
from splash.sched.draft import PlanDraft
from splash.sched.goals import room, stripe_offset, tokens_held
from splash.sched.growth import summed
from splash.sched.record import Record
from splash.sched.roster import Roster
from splash.sched.shared import Shared
from splash.sched.target import Target
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
        self._blocked: tuple[Record, Target] | None = None
        """Who does not fit under which target, while nothing comes free by itself."""

    @property
    def full(self) -> bool:
        """As many run as may."""
        return len(self._roster.running) >= (self._config.max_running if self.open else 0)

    @property
    def idle(self) -> bool:
        """Nobody is admitted unless somebody arrives or leaves."""
        first = self._roster.waiting.peek()
        return first is None or self.full or self._blocked == (first, self._transitions.target)

    def admit(self, draft: PlanDraft) -> None:
        """Start who fits, in order."""
        roster = self._roster
        promised: list[int] | None = None
        held: list[int] = []
        self._blocked = None
        while (record := roster.waiting.peek()) is not None and not self.full:
            if promised is None:
                promised = self._promised()
                held = tokens_held(roster.running.values(), self._transitions.target.layout, self._store)
            goal = self._goal_for(record, held, promised)
            if goal is None:
                if self._store.collect(self._progress.collected):
                    continue
                self._progress.short = draft.step
                if self._transitions.drop_warm_replicas(self._progress.planned):
                    continue
                if self._transitions.at_rest and not self._store.num_retiring:
                    self._blocked = record, self._transitions.target
                return
            roster.start(record, goal, draft)
            promised = summed((promised, self._need(record, goal)))
            held[goal.home] += len(record.tokens) if goal.layout is self._transitions.target.layout else 0

    def _goal_for(self, record: Record, held: Sequence[int], promised: Sequence[int]) -> Assignment | None:
        """The first of its goals with room for all that is known of it, beside the pages `promised`; None if there is
        none."""
        state = [self._store.state_pages] * self._store.topo.ranks
        goals = self._goals(record, held)
        return next(
            (at for at in goals if self._fits(summed((self._need(record, at), promised, state)))), None
        )

    def _goals(self, record: Record, held: Sequence[int]) -> Iterable[Assignment]:
        """The target's layout for its length, at home on the rank that holds least, or else on the next: on the first
        only while anything moves, waits to or was given up, so that the others keep room for it."""
        target = self._transitions.target
        layout = target.layout_of(len(record.tokens))
        if layout is not target.layout:
            return [assigned(layout, stripe_offset(record, self._store))]
        if not self._transitions.at_rest:
            return [assigned(layout, held.index(min(held)))]
        return (assigned(layout, home) for home in sorted(range(len(held)), key=held.__getitem__))

    def _need(self, record: Record, goal: Assignment) -> list[int]:
        """Pages per rank for all that is known of it."""
        return self._store.missing((), goal, 0, self._store.num_blocks(len(record.tokens)))

    def _fits(self, need: Sequence[int]) -> bool:
        """Room for it. While ranks are to be made full, the slots' room is left free for that."""
        margin = self._config.watermark_pages if self._roster.running else 0
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
