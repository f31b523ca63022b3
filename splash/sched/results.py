"""What a step gave: tokens taken, requests ended, the step told."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from splash.core.events import FirstToken, RequestFinished, RequestResumed, StepDone
from splash.core.request import FinishReason
from splash.sched.aim import Aim
from splash.sched.flight import Flight
from splash.sched.pace import Pace
from splash.sched.record import Record
from splash.sched.roster import Roster
from splash.sched.shared import Shared
from splash.sched.step import StepResult
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
        transitions: Transitions,
        aim: Aim,
        pace: Pace,
    ) -> None:
        self._roster = roster
        self._transitions = transitions
        self._aim = aim
        self._pace = pace
        self._journal = shared.journal

    def take(self, flight: Flight, result: StepResult) -> list[Output]:
        """The tokens go to whom the plan samples for, unless they have ended since it was made."""
        outputs = self._take_tokens(flight, result)
        self._note_step(flight, result, len(outputs))
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

    def _take_tokens(self, flight: Flight, result: StepResult) -> list[Output]:
        now = self._journal.now()
        outputs: list[Output] = []
        sampling = flight.sampling
        assert len(result.tokens) == len(sampling), "one token for each row that samples"
        for record in sampling[len(flight.plan.decodes) :]:
            if record.running:
                self._tell_first(record, now)
        for record, token in zip(sampling, result.tokens, strict=True):
            if not record.running:
                continue
            if record.forced and record.num_output < len(record.forced):
                token = record.forced[record.num_output]
            tokens = record.tokens
            tokens.append(token)
            record.last_token_s = now
            if token in record.stops:
                outputs.append(self.finish(record, (token,), "stop"))
            elif len(tokens) >= record.limit:
                outputs.append(self.finish(record, (token,), "length"))
            else:
                outputs.append(_output((record.id, (token,), None)))
        return outputs

    def _tell_first(self, record: Record, now: float) -> None:
        """Its first token since it was admitted."""
        if record.first_token_s is None:
            record.first_token_s = now
            self._journal.emit(FirstToken(now, record.id, now - record.arrival_s))
        else:
            self._journal.emit(RequestResumed(now, record.id, now - record.last_token_s))

    def _note_step(self, flight: Flight, result: StepResult, num_tokens: int) -> None:
        plan = flight.plan
        if not plan.num_rows:
            self._pace.rest()
            return
        num_prompt = sum(c.count for c in plan.chunks)
        steady = not plan.chunks and not self._aim.switching
        boundary = self._pace.note_times(result.started_s, result.ended_s, steady=steady)
        self._transitions.note_boundary(plan.step, boundary)
        assert flight.by_place is not None, "the background of a plan comes before its result"
        by_layout, by_rank = flight.by_place
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
                flight.num_flips,
                num_tokens,
            )
        )
