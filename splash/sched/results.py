"""What a step gave: tokens taken, requests ended, the step told."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from splash.core.events import FirstToken, RequestFinished, RequestResumed, StepDone
from splash.core.request import FinishReason
from splash.sched.aim import Aim
from splash.sched.decodes import Decodes
from splash.sched.pace import Pace
from splash.sched.record import Record
from splash.sched.roster import Roster
from splash.sched.rows import Rows
from splash.sched.shared import Shared
from splash.sched.step import StepPlan, StepResult
from splash.sched.transition import Transitions


class Output(NamedTuple):
    """What a step gave one request."""

    request: int
    tokens: tuple[int, ...]
    finish_reason: FinishReason | None


_output: Callable[[tuple[int, tuple[int, ...], FinishReason | None]], Output] = partial(tuple.__new__, Output)
"""`Output` of its fields. Its own constructor is a Python call: a quarter of the time that taking a token takes."""


class Results:
    """Takes results to where they belong; keeps nothing."""

    def __init__(
        self,
        shared: Shared,
        *,
        roster: Roster,
        rows: Rows,
        decodes: Decodes,
        transitions: Transitions,
        aim: Aim,
        pace: Pace,
    ) -> None:
        self._roster = roster
        self._rows = rows
        self._decodes = decodes
        self._transitions = transitions
        self._aim = aim
        self._pace = pace
        self._journal = shared.journal

    def take(self, plan: StepPlan, result: StepResult, num_flips: int) -> list[Output]:
        """The tokens go to whom the plan samples for; `num_flips` requests had flipped before the step."""
        outputs = self._take_tokens(result)
        self._note_step(plan, result, num_flips, len(outputs))
        return outputs

    def finish(self, record: Record, tokens: tuple[int, ...], reason: FinishReason) -> Output:
        """End a request wherever it is."""
        self._roster.end(record)
        count = record.num_output
        ttft = tpot = None
        if record.first_token_s is not None:
            ttft = record.first_token_s - record.arrival_s
            if count > 1:
                tpot = (record.last_token_s - record.first_token_s) / (count - 1)
        self._journal.emit(RequestFinished(self._journal.now(), record.id, reason, count, ttft, tpot))
        return Output(record.id, tokens, reason)

    def _take_tokens(self, result: StepResult) -> list[Output]:
        now = self._journal.now()
        outputs: list[Output] = []
        sampling = self._rows.take_sampling()
        assert len(result.tokens) == len(sampling), "one token for each row that samples"
        for record, token in zip(sampling, result.tokens, strict=True):
            if not record.running:
                continue
            if record.forced and record.num_output < len(record.forced):
                token = record.forced[record.num_output]
            tokens = record.tokens
            tokens.append(token)
            if not record.decoding:
                self._begin_decoding(record, now)
            record.last_token_s = now
            if token in record.stops:
                outputs.append(self.finish(record, (token,), "stop"))
            elif len(tokens) >= record.limit:
                outputs.append(self.finish(record, (token,), "length"))
            else:
                outputs.append(_output((record.id, (token,), None)))
        return outputs

    def _begin_decoding(self, record: Record, now: float) -> None:
        record.decoding = True
        self._decodes.disturb()
        if record.first_token_s is None:
            record.first_token_s = now
            self._journal.emit(FirstToken(now, record.id, now - record.arrival_s))
        else:
            self._journal.emit(RequestResumed(now, record.id, now - record.last_token_s))

    def _note_step(self, plan: StepPlan, result: StepResult, num_flips: int, num_tokens: int) -> None:
        if not plan.num_rows:
            self._pace.rest()
            return
        num_prompt = sum(c.count for c in plan.chunks)
        steady = not plan.chunks and not self._aim.switching
        boundary = self._pace.note_times(result.started_s, result.ended_s, steady=steady)
        self._transitions.note_boundary(plan.step, boundary)
        by_layout, by_rank = self._rows.by_place()
        self._journal.emit(
            StepDone(
                self._journal.now(),
                plan.step,
                result.forward_s,
                boundary,
                len(plan.decodes),
                num_prompt,
                by_layout,
                by_rank,
                num_flips,
                num_tokens,
            )
        )
