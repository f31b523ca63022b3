"""Many steps at once, for who knows their times beforehand: a simulator."""

from __future__ import annotations

from collections.abc import Sequence

from splash.core.config import SchedulerConfig
from splash.core.events import StepDone
from splash.kv.blocks import KVStore
from splash.sched.admission import Admission
from splash.sched.aim import Aim
from splash.sched.decodes import Decodes
from splash.sched.growth import Growth
from splash.sched.journal import Journal
from splash.sched.observe import PoolSamples, rows_by
from splash.sched.pace import Pace
from splash.sched.progress import Progress
from splash.sched.roster import Roster
from splash.sched.transition import Transitions

LEAST, CHANGED_LEAST = 2, 3
"""Steps that are worth it: one that is left over is taken by itself."""
REBALANCE_PERIOD = 32
"""Steps between two looks at the owners' shares."""


class Steady:
    """Steps in which nothing but the decodes' lengths changes, with the same effect as one by one; keeps nothing."""

    def __init__(
        self,
        *,
        store: KVStore,
        roster: Roster,
        decodes: Decodes,
        growth: Growth,
        admission: Admission,
        transitions: Transitions,
        aim: Aim,
        pace: Pace,
        samples: PoolSamples,
        config: SchedulerConfig,
        progress: Progress,
        journal: Journal,
    ) -> None:
        self._store = store
        self._roster = roster
        self._decodes = decodes
        self._growth = growth
        self._admission = admission
        self._transitions = transitions
        self._aim = aim
        self._pace = pace
        self._samples = samples
        self._config = config
        self._progress = progress
        self._journal = journal

    def num_steps(self) -> int:
        """How many of the next steps are sure to compute the same rows, one token further each: nobody arrives in them,
        ends, is admitted or moves, and the policy is not asked. 0 if that is not sure, or there are few."""
        if self._aim.wished or not self._transitions.at_rest or not self._admission.idle:
            return 0
        changed = not self._decodes.settled or not self._roster.settled or self._store.num_retiring > 0
        if changed and not self._changed_simply():
            return 0
        self._decodes.settle()
        num_steps = self._unchanged()
        return 0 if num_steps < (CHANGED_LEAST if changed else LEAST) else num_steps

    def take_gone(self) -> list[int]:
        """Who has left since the last step: no plan will say so."""
        return self._roster.take_gone()

    def _changed_simply(self) -> bool:
        """With the last step decodes began or ended, and its successor has nothing else to see to."""
        nobody = not len(self._roster.waiting) or self._admission.full
        return nobody and self._transitions.rested and not self._samples.due

    def _unchanged(self) -> int:
        """Steps until a decode ends, or somebody looks."""
        records = self._decodes.records
        if not records or len(records) != len(self._roster.running):
            return 0
        quiet = min(r.limit - len(r.tokens) for r in records) - 1
        next_step = self._progress.planned + 1
        if self._config.rebalance:
            quiet = min(quiet, -next_step % REBALANCE_PERIOD)
        unasked = self._aim.quiet_steps(next_step)
        return max(0, quiet if unasked is None else min(quiet, unasked))

    def jump(self, times: Sequence[tuple[float, float]]) -> int:
        """The effect of one step for each (start, end) in seconds, of at most `num_steps()`; returns how many were
        made, fewer where memory runs out. Every row gets token 0, as executors give that compute none."""
        room = self._growth.grow_ahead(len(times))
        if not room:
            return 0
        self._note(times[:room])
        self._transitions.ledger.pass_idly(room)
        zeros = [0] * room
        for record in self._decodes.records:
            record.computed += room
            record.tokens.extend(zeros)
            record.last_token_s = times[room - 1][1]
        if len(self._roster.waiting) and not self._admission.full:
            self._progress.short = self._progress.planned
        return room

    def _note(self, times: Sequence[tuple[float, float]]) -> None:
        by_layout, by_rank = rows_by(self._decodes.places, self._store.topo.ranks)
        rows = len(self._decodes.records)
        for started_s, ended_s in times:
            self._progress.planned += 1
            self._pace.note_rows(0)
            boundary = self._pace.note_times(started_s, ended_s, steady=True)
            self._journal.emit(
                StepDone(
                    ended_s,
                    self._progress.planned,
                    ended_s - started_s,
                    boundary,
                    rows,
                    0,
                    by_layout,
                    by_rank,
                    0,
                    rows,
                )
            )
        self._progress.collected = self._progress.planned
