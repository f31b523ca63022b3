"""What a run was worth: requests, switches and the cost of a flip, folded from events and outputs."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import sub
from statistics import median
from typing import Any

from splash.core.events import (
    Event,
    FirstToken,
    PolicyAsked,
    RequestArrived,
    RequestFinished,
    RequestPreempted,
    RunFinished,
    RunStarted,
    StepDone,
    SwitchDone,
    TargetChanged,
    TargetRefused,
)
from splash.core.request import FinishReason
from splash.engine.decisions import Decisions
from splash.engine.percentiles import percentile, spread

NUM_PEERS = 41
"""Neighbours, of the same layout and load, that a step is compared with."""
MIN_PEERS = 5
MIN_FLIPS = 20
"""Boundaries with flips below which their cost is noise."""


@dataclass(slots=True)
class RequestReport:
    """One request: `ttft_s` from arrival to first token, `tpot_s` (last - first) / (n - 1), None below 2 tokens."""

    id: int
    num_prompt: int = 0
    arrival_s: float | None = None
    """None: it was refused, or never arrived."""
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None
    error: str | None = None
    """Why it was refused when it arrived."""
    num_output: int = 0
    """As the event of its end says; `token_ids` may not be known (replay)."""
    ttft_s: float | None = None
    tpot_s: float | None = None
    finished_s: float | None = None
    preemptions: int = 0

    @property
    def never_arrived(self) -> bool:
        """The run ended before it was due."""
        return self.arrival_s is None and self.error is None


@dataclass(frozen=True, slots=True)
class Boundary:
    """What lies before a step, in seconds, and what the step takes more than is typical of its layout."""

    step: int
    flips: int
    between_s: float
    """From the end of the step before on its last rank to the start of this one's forward on its first rank."""
    excess_s: float

    @property
    def cost_s(self) -> float:
        return self.between_s + self.excess_s


def boundaries(steps: Iterable[StepDone]) -> list[Boundary]:
    """The boundaries before decode steps that follow another step at once (not a tick, nor an idle time).

    Before a step with a prompt chunk there is none: such a step has no typical time to be compared with.
    """
    ordered = sorted(steps, key=lambda s: s.step)
    decodes = [s for s in ordered if s.decode_rows and not s.prefill_rows]
    typical = _TypicalStep(decodes)
    follows = {b.step for a, b in pairwise(ordered) if b.step == a.step + 1 and b.boundary_s > 0}
    return [
        Boundary(s.step, s.flips, s.boundary_s, s.forward_s - typical.seconds(s))
        for s in decodes
        if s.step in follows
    ]


class _TypicalStep:
    """Median forward time of decode steps that are alike: as many rows in each layout, and about as long contexts,
    that is, near in time. Where there are fewer than MIN_PEERS, those with nearly as many rows in each will do."""

    def __init__(self, steps: Iterable[StepDone]) -> None:
        self._alike: dict[tuple[str, ...], dict[tuple[int, ...], list[StepDone]]] = {}
        for step in steps:
            self._alike.setdefault(_mix(step), {}).setdefault(_rows(step), []).append(step)
        self._few: dict[tuple[tuple[str, ...], tuple[int, ...]], float] = {}

    def seconds(self, step: StepDone) -> float:
        alike = self._alike[_mix(step)][_rows(step)]
        if len(alike) < MIN_PEERS:
            return self._median_of_few(_mix(step), _rows(step))
        place = bisect_left(alike, step.step, key=lambda s: s.step)
        first = max(0, min(place - NUM_PEERS // 2, len(alike) - NUM_PEERS))
        return median(s.forward_s for s in alike[first : first + NUM_PEERS])

    def _median_of_few(self, mix: tuple[str, ...], rows: tuple[int, ...]) -> float:
        if (mix, rows) not in self._few:
            by_rows, peers = self._alike[mix], list[float]()
            for other in sorted(by_rows, key=lambda n: sum(map(abs, map(sub, n, rows)))):
                if len(peers) < MIN_PEERS:
                    peers += (s.forward_s for s in by_rows[other])
            self._few[mix, rows] = median(peers)
        return self._few[mix, rows]


def _rows(step: StepDone) -> tuple[int, ...]:
    """Of each layout of `_mix`."""
    return tuple(step.rows_by_layout[name] for name in _mix(step))


def _mix(step: StepDone) -> tuple[str, ...]:
    return tuple(sorted(name for name, rows in step.rows_by_layout.items() if rows))


def switch_cost(steps: Sequence[StepDone]) -> dict[str, Any]:
    """`switch_cost` of the JSON: boundaries with flips against those without, and the decode step. What a flip costs is
    null where there are too few of them to tell."""
    cost = cost_of(boundaries(steps), [s.forward_s for s in steps if s.decode_rows and not s.prefill_rows])
    return cost if cost["flips"] >= MIN_FLIPS else {**cost, "excess_s": None, "excess_share": None}


def cost_of(found: Sequence[Boundary], decode: Sequence[float]) -> dict[str, Any]:
    """`switch_cost` of some boundaries, of one run or of several, and of the seconds of their decode steps."""
    flips = [b.cost_s for b in found if b.flips]
    null = [b.cost_s for b in found if not b.flips]
    excess = median(flips) - median(null) if flips and null else None
    step_s = percentile(decode, 50)
    return {
        "flips": len(flips),
        "nulls": len(null),
        "step_s_p50": step_s,
        "flip_s": spread(flips),
        "null_s": spread(null),
        "excess_s": excess,
        "excess_share": excess / step_s if excess is not None and step_s else None,
    }


class RunReport:
    """Folds a run's events; `output` adds tokens and text. Nothing else is needed for tables and JSON."""

    def __init__(self) -> None:
        self.started: RunStarted | None = None
        self.finished: RunFinished | None = None
        self.requests: dict[int, RequestReport] = {}
        self.steps: list[StepDone] = []
        self.switches: list[SwitchDone] = []
        self.refusals: list[TargetRefused] = []
        self.targets: list[TargetChanged] = []
        self.decisions = Decisions()

    def event(self, event: Event) -> None:
        match event:
            case RunStarted():
                self.started = event
            case RunFinished():
                self.finished = event
            case StepDone():
                self.steps.append(event)
            case SwitchDone():
                self.switches.append(event)
            case TargetChanged():
                self.targets.append(event)
            case PolicyAsked():
                self.decisions.event(event)
            case TargetRefused():
                self.refusals.append(event)
            case RequestArrived():
                request = self._request(event.request)
                request.num_prompt, request.arrival_s = event.num_prompt, event.t
            case FirstToken():
                self._request(event.request).ttft_s = event.ttft_s
            case RequestPreempted():
                self._request(event.request).preemptions += 1
            case RequestFinished():
                request = self._request(event.request)
                request.ttft_s, request.tpot_s = event.ttft_s, event.tpot_s
                request.finished_s = event.t
                request.num_output, request.finish_reason = event.num_tokens, event.reason

    def output(
        self,
        request: int,
        token_ids: Sequence[int],
        text: str,
        finish_reason: FinishReason | None,
        error: str | None = None,
    ) -> None:
        known = self._request(request)
        known.token_ids += token_ids
        known.text += text
        known.finish_reason = finish_reason or known.finish_reason
        known.error = error or known.error

    def _request(self, request: int) -> RequestReport:
        return self.requests.setdefault(request, RequestReport(request))

    # ---- what comes out

    def to_json(self) -> dict[str, Any]:
        return {
            "requests": [self._request_json(r) for r in self._in_order()],
            "switches": [_switch_json(s) for s in self._switches_in_time()],
            "refused": [{"step": r.step, "target": r.target, "reason": r.reason} for r in self.refusals],
            "switch_cost": switch_cost(self.steps),
            "decisions": self.decisions.to_json(),
            "prediction": self.decisions.prediction(),
            "summary": self.summary(),
        }

    def _switches_in_time(self) -> list[SwitchDone]:
        """Those that began when a step was still to come: after the last one there is no request to switch."""
        if not self.steps:
            return self.switches
        return [s for s in self.switches if s.step - s.steps <= self.steps[-1].step]

    def _in_order(self) -> list[RequestReport]:
        return [self.requests[key] for key in sorted(self.requests)]

    @staticmethod
    def _request_json(r: RequestReport) -> dict[str, Any]:
        return {
            "id": r.id,
            "num_prompt": r.num_prompt,
            "token_ids": r.token_ids,
            "text": r.text,
            "finish_reason": None if r.never_arrived else r.finish_reason,
            "error": r.error,
            "arrival_s": r.arrival_s,
            "ttft_s": r.ttft_s,
            "tpot_s": r.tpot_s,
            "preemptions": r.preemptions,
        }

    def summary(self) -> dict[str, Any]:
        """Throughput over the time from the first arrival to the last finish, and percentiles over requests; those that
        never arrived are counted apart."""
        requests = [r for r in self.requests.values() if not r.never_arrived]
        output_tokens = sum(r.num_output for r in requests)
        seconds = self.duration_s()
        percents = (50, 95, 99)
        return {
            "output_tokens_per_s": output_tokens / seconds if seconds > 0 else None,
            "output_tokens": output_tokens,
            "prompt_tokens": sum(r.num_prompt for r in requests),
            "duration_s": seconds,
            "requests": len(requests),
            "never_arrived": len(self.requests) - len(requests),
            "finish_reasons": dict(Counter(r.finish_reason for r in requests if r.finish_reason)),
            "ttft_s": spread([r.ttft_s for r in requests if r.ttft_s is not None], percents),
            "tpot_s": spread([r.tpot_s for r in requests if r.tpot_s is not None], percents),
            "steps": len(self.steps),
            "preemptions": sum(r.preemptions for r in requests),
            "switches": len(self._switches_in_time()),
            "layouts": self.layouts(),
            "outcome": self.finished.outcome if self.finished else None,
        }

    def duration_s(self) -> float:
        arrivals = [r.arrival_s for r in self.requests.values() if r.arrival_s is not None]
        ends = [r.finished_s for r in self.requests.values() if r.finished_s is not None]
        return max(ends) - min(arrivals) if ends and arrivals else 0.0

    def layouts(self) -> dict[str, float]:
        """Share of the forward time of each layout, by rows, in order of first appearance."""
        seconds: dict[str, float] = {}
        for step in self.steps:
            rows = sum(step.rows_by_layout.values())
            for name, count in step.rows_by_layout.items():
                if count:
                    seconds[name] = seconds.get(name, 0.0) + step.forward_s * count / rows
        total = sum(seconds.values())
        return (
            {name: part / total for name, part in seconds.items()} if total else dict.fromkeys(seconds, 0.0)
        )


def _switch_json(s: SwitchDone) -> dict[str, Any]:
    return {
        "from": s.old,
        "to": s.new,
        "reason": s.reason,
        "outcome": s.outcome,
        "from_striped_from": s.old_striped_from,
        "to_striped_from": s.new_striped_from,
        "started_step": s.step - s.steps,
        "ended_step": s.step,
        "steps": s.steps,
        "requests": s.requests,
        "bytes_received": s.bytes_received,
        "weight_bytes_received": s.weight_bytes_received,
        "seconds": s.seconds,
        "max_boundary_s": s.max_boundary_s,
    }
