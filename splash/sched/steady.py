"""Many steps at once, for who knows their times beforehand: a simulator."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from splash.core.events import StepDone
from splash.sched.observe import rows_by
from splash.sched.parts import Parts
from splash.sched.results import Output

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

    def seen(self, num_steps: int) -> Iterable[int]:
        """Of the first `num_steps`, in order, those that take a sample when it falls due."""
        return chain(range(min(self.inner.start, num_steps)), range(self.inner.stop, num_steps))


NONE = Stretch(0, range(0))


class Steady:
    """Steps in which nothing but the decodes' lengths changes, with the same effect as one by one; keeps nothing."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._shared = parts.shared

    def ahead(self) -> Stretch:
        """The next steps, as far as they are sure to compute the same rows, one token further each: nobody arrives in
        them, ends before the last, is admitted or moves, and the policy is not asked."""
        parts, decodes = self._parts, self._parts.decodes
        if parts.aim.wished or not parts.transitions.at_rest or not parts.admission.idle:
            return NONE
        changed = not decodes.settled or not parts.roster.settled or self._shared.store.num_retiring > 0
        if changed and not self._changed_simply():
            return NONE
        decodes.settle(self._shared.progress.planned + 1)
        if not decodes.records or len(decodes.records) != len(self._shared.running):
            return NONE
        left = min(record.limit - len(record.tokens) for record in decodes.records)
        unseen = self._unseen()
        inner = range(int(changed), min(left - 1, unseen))
        if len(inner) < INNER_LEAST:
            inner = range(0)
        num_steps = min(left, unseen) if parts.transitions.rested else inner.stop
        return Stretch(max(0, num_steps), inner)

    @property
    def gone(self) -> Sequence[int]:
        """Who has left since the last step: no plan will say so if a jump comes next."""
        return self._parts.roster.gone

    def jump(self, times: Sequence[tuple[float, float]], stretch: Stretch) -> int:
        """The effect of one step for each (start, end) in seconds, of at most those of `ahead()`; returns how many were
        made, fewer where memory runs out or a sample is due. Every row gets token 0, as executors give that compute
        none. `end` concludes the last one."""
        parts, num_steps = self._parts, len(times)
        seen = (step for step in stretch.seen(num_steps) if parts.samples.due(times[step][0]))
        room = parts.growth.grow_ahead(next(seen, num_steps))
        if not room:
            return 0
        parts.roster.take_gone()
        shown = self._shown()
        for started_s, ended_s in times[: room - 1]:
            self._shared.progress.planned += 1
            self._tell(started_s, ended_s, shown)
        parts.transitions.ledger.pass_idly(room)
        zeros = [0] * room
        for record in parts.decodes.records:
            record.computed += room
            record.tokens.extend(zeros)
            record.last_token_s = times[room - 1][1]
        return room

    def end(self, started_s: float, ended_s: float) -> list[Output]:
        """The last step of a jump is over, and the clock says so: who has come to its end finishes."""
        parts, progress = self._parts, self._shared.progress
        progress.planned += 1
        progress.collected = progress.planned
        if len(parts.roster.waiting) and not parts.admission.full:
            progress.short = progress.planned
        ended = [record for record in parts.decodes.records if len(record.tokens) >= record.limit]
        outputs = [parts.results.finish(record, (0,), "length") for record in ended]
        self._tell(started_s, ended_s, self._shown())
        return outputs

    def _changed_simply(self) -> bool:
        """With the last step decodes began or ended, and its successor has nothing else to see to."""
        parts = self._parts
        nobody = not len(parts.roster.waiting) or parts.admission.full
        return nobody and parts.transitions.rested and not parts.samples.due(self._shared.journal.now())

    def _unseen(self) -> int:
        """Steps before the one in which the policy or the owners' shares are looked at."""
        next_step = self._shared.progress.planned + 1
        unasked = self._parts.aim.quiet_steps(next_step)
        looks = [] if unasked is None else [unasked]
        if self._shared.config.rebalance:
            looks.append(-next_step % REBALANCE_PERIOD)
        return min(looks, default=sys.maxsize)

    def _shown(self) -> tuple[dict[str, int], list[int]]:
        """Rows by layout and by rank."""
        return rows_by(self._parts.decodes.places, self._shared.store.topo.ranks)

    def _tell(self, started_s: float, ended_s: float, shown: tuple[dict[str, int], list[int]]) -> None:
        """Note the step that was planned last."""
        boundary = self._parts.pace.note_times(started_s, ended_s, steady=True)
        rows = len(self._parts.decodes.records)
        by_layout, by_rank = shown
        self._shared.journal.emit(
            StepDone(
                ended_s,
                self._shared.progress.planned,
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
