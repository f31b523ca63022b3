"""Many steps at once, for who knows their times beforehand: a simulator."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

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
from splash.sched.results import Output, Results
from splash.sched.roster import Roster
from splash.sched.transition import Transitions

INNER_LEAST = 2
"""Steps between the first and the last of a stretch that are passed over without a look at the samples."""
REBALANCE_PERIOD = 32
"""Steps between two looks at the owners' shares."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Steps ahead that differ in nothing but lengths."""

    num_steps: int
    inner: range
    """Those for which a sample that falls due waits: pages are taken for all of them at once. It does not wait for the
    first after a change, nor for the last, in which a request ends."""


NONE = Stretch(0, range(0))


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
        results: Results,
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
        self._results = results
        self._config = config
        self._progress = progress
        self._journal = journal

    def ahead(self) -> Stretch:
        """The next steps, as far as they are sure to compute the same rows, one token further each: nobody arrives in
        them, ends before the last, is admitted or moves, and the policy is not asked."""
        if self._aim.wished or not self._transitions.at_rest or not self._admission.idle:
            return NONE
        changed = not self._decodes.settled or not self._roster.settled or self._store.num_retiring > 0
        if changed and not self._changed_simply():
            return NONE
        self._decodes.settle()
        records = self._decodes.records
        if not records or len(records) != len(self._roster.running):
            return NONE
        left, unseen = min(record.limit - len(record.tokens) for record in records), self._unseen()
        inner = range(int(changed), min(left - 1, unseen))
        if len(inner) < INNER_LEAST:
            inner = range(0)
        num_steps = min(left, unseen) if self._transitions.rested else inner.stop
        return Stretch(max(0, num_steps), inner)

    @property
    def gone(self) -> Sequence[int]:
        """Who has left since the last step: no plan will say so if a jump comes next."""
        return self._roster.gone

    def jump(self, times: Sequence[tuple[float, float]], stretch: Stretch) -> int:
        """The effect of one step for each (start, end) in seconds, of at most those of `ahead()`; returns how many were
        made, fewer where memory runs out or a sample is due. Every row gets token 0, as executors give that compute
        none. `end` concludes the last one."""
        inner = stretch.inner
        for step in (*range(inner.start), *range(inner.stop, len(times))):
            if self._samples.due(times[step][0]):
                times = times[:step]
                break
        room = self._growth.grow_ahead(len(times))
        if not room:
            return 0
        self._roster.take_gone()
        shown = self._shown()
        for started_s, ended_s in times[: room - 1]:
            self._progress.planned += 1
            self._tell(started_s, ended_s, shown)
        self._transitions.ledger.pass_idly(room)
        zeros = [0] * room
        for record in self._decodes.records:
            record.computed += room
            record.tokens.extend(zeros)
            record.last_token_s = times[room - 1][1]
        return room

    def end(self, started_s: float, ended_s: float) -> list[Output]:
        """The last step of a jump is over, and the clock says so: who has come to its end finishes."""
        self._progress.planned += 1
        self._progress.collected = self._progress.planned
        if len(self._roster.waiting) and not self._admission.full:
            self._progress.short = self._progress.planned
        ended = [record for record in self._decodes.records if len(record.tokens) >= record.limit]
        outputs = [self._results.finish(record, (0,), "length") for record in ended]
        self._tell(started_s, ended_s, self._shown())
        return outputs

    def _changed_simply(self) -> bool:
        """With the last step decodes began or ended, and its successor has nothing else to see to."""
        nobody = not len(self._roster.waiting) or self._admission.full
        return nobody and self._transitions.rested and not self._samples.due(self._journal.now())

    def _unseen(self) -> int:
        """Steps before the one in which the policy or the owners' shares are looked at."""
        next_step = self._progress.planned + 1
        unasked = self._aim.quiet_steps(next_step)
        looks = [] if unasked is None else [unasked]
        if self._config.rebalance:
            looks.append(-next_step % REBALANCE_PERIOD)
        return min(looks, default=sys.maxsize)

    def _shown(self) -> tuple[dict[str, int], list[int]]:
        """Rows by layout and by rank."""
        return rows_by(self._decodes.places, self._store.topo.ranks)

    def _tell(self, started_s: float, ended_s: float, shown: tuple[dict[str, int], list[int]]) -> None:
        """Note the step that was planned last."""
        boundary = self._pace.note_times(started_s, ended_s, steady=True)
        rows = len(self._decodes.records)
        by_layout, by_rank = shown
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
