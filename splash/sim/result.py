"""What a simulated run came to. The definitions of all latencies are here.

Of one request with arrival a and output tokens at t₁ … tₙ: TTFT is t₁ − a; TPOT is (tₙ − t₁) / (n − 1), undefined for
n = 1; ITL are the gaps t₂ − t₁, t₃ − t₂, …, so that their percentiles are over tokens and not over requests; E2E is
tₙ − a. All seconds. A preemption does not start any of them again: the gap that it leaves is one of the ITL, and counts
in TPOT and E2E.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splash.sched.target import target_named

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of a set of seconds; None, all of them, when the set is empty."""

    mean: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None

    @classmethod
    def of(cls, values: Sequence[float] | Floats, counts: Sequence[int] | None = None) -> Percentiles:
        """Between two values linearly interpolated, as `numpy.percentile` does; `counts`: how often each value
        occurs."""
        spread = Distribution.of(values, counts)
        if not spread.values:
            return cls(None, None, None, None, None)
        return cls(spread.mean, *(spread.percentile(percent) for percent in (50, 90, 95, 99)))


@dataclass(frozen=True, slots=True)
class Distribution:
    """Values in ascending order, and how often each occurs: what a CDF is drawn from."""

    values: tuple[float, ...]
    counts: tuple[int, ...]

    @classmethod
    def of(cls, values: Sequence[float] | Floats, counts: Sequence[int] | None = None) -> Distribution:
        """Equal values are counted together. `counts` defaults to one each."""
        given = np.asarray(values, dtype=np.float64)
        each = np.ones(len(given), np.int64) if counts is None else np.asarray(counts, dtype=np.int64)
        found, place = np.unique(given, return_inverse=True)
        sums = np.zeros(len(found), np.int64)
        np.add.at(sums, place, each)
        return cls(tuple(found.tolist()), tuple(sums.tolist()))

    @property
    def mean(self) -> float:
        return float(np.average(self.values, weights=self.counts))

    def percentile(self, percent: float) -> float:
        """As of the list in which each value stands as often as its count says."""
        ends = np.cumsum(self.counts)
        place = (int(ends[-1]) - 1) * percent / 100
        low = int(place)
        high = min(low + 1, int(ends[-1]) - 1)
        below, above = (self.values[int(np.searchsorted(ends, index, side="right"))] for index in (low, high))
        return below + (above - below) * (place - low)


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """A finished request; times are seconds from the start of the run."""

    arrival_s: float
    first_token_s: float
    last_token_s: float
    prompt_tokens: int
    output_tokens: int

    @property
    def ttft_s(self) -> float:
        return self.first_token_s - self.arrival_s

    @property
    def tpot_s(self) -> float | None:
        gaps = self.output_tokens - 1
        return (self.last_token_s - self.first_token_s) / gaps if gaps else None

    @property
    def e2e_s(self) -> float:
        return self.last_token_s - self.arrival_s


@dataclass(frozen=True, slots=True)
class Targets:
    """What a request must stay within to count as good; None: anything."""

    ttft_s: float | None = None
    tpot_s: float | None = None

    def __bool__(self) -> bool:
        """Whether there is any target."""
        return self.ttft_s is not None or self.tpot_s is not None

    def met_by(self, request: RequestTimes) -> bool:
        """A request of one token has no TPOT, and meets any target of it."""
        late = self.ttft_s is not None and request.ttft_s > self.ttft_s
        tpot_s = request.tpot_s
        slow = self.tpot_s is not None and tpot_s is not None and tpot_s > self.tpot_s
        return not late and not slow


@dataclass(frozen=True, slots=True)
class SwitchRecord:
    """One change of the target, from the decision until all running requests had reached it (or it was replaced)."""

    time_s: float
    """When it was decided."""
    old: str
    new: str
    reason: str
    seconds: float
    bytes: int
    """Received over all ranks, KV and weights together."""
    steps: int
    """Decode steps and chunks that ran meanwhile."""
    outcome: str = "done"
    """done | superseded | cancelled."""
    old_striped_from: int | None = None
    new_striped_from: int | None = None
    """Tokens from which requests of the owner layout are striped; None: none is."""

    @property
    def old_target(self) -> str:
        """By its whole name."""
        return str(target_named(self.old, self.old_striped_from))

    @property
    def new_target(self) -> str:
        return str(target_named(self.new, self.new_striped_from))


@dataclass(frozen=True, slots=True)
class Sample:
    """The state of the engine at a moment; it holds until the next sample."""

    time_s: float
    target: str
    running: int
    waiting: int
    kv_used_share: float
    """Of the pages that KV can use, over all ranks."""
    tokens_per_s: float
    """Output tokens since the sample before, per second."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """One workload served under one layout or policy.

    `goodput_requests_per_s`: requests that met both targets, divided by the makespan; None without targets.
    `time_share`: share of the makespan by target layout, summing to one.
    """

    layout: str
    """A layout's name, or auto, oracle, restart."""
    makespan_s: float
    """From the first arrival to the last token."""
    num_requests: int
    prompt_tokens: int
    output_tokens: int
    output_tokens_per_s: float
    """Output tokens of finished requests, divided by the makespan."""
    ttft_s: Percentiles
    tpot_s: Percentiles
    itl_s: Percentiles
    e2e_s: Percentiles
    goodput_requests_per_s: float | None
    preemptions: int
    time_share: dict[str, float]
    switches: tuple[SwitchRecord, ...]
    samples: tuple[Sample, ...]
    requests: tuple[RequestTimes, ...]
    itl: Distribution
    """The gaps between tokens, seconds."""
    decisions: int
    """How often the policy was asked."""
    steps: int
    wall_s: float
    """What the simulation itself took."""
    refused: tuple[str, ...] = ()
    """Which requests could not be served at all, and why."""

    def to_json(self) -> dict[str, Any]:
        """Plain data without the series (`samples`, `requests`, `itl`), which the report page shows."""
        return {
            "layout": self.layout,
            "makespan_s": self.makespan_s,
            "requests": self.num_requests,
            "refused": len(self.refused),
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "output_tokens_per_s": self.output_tokens_per_s,
            "ttft_s": asdict(self.ttft_s),
            "tpot_s": asdict(self.tpot_s),
            "itl_s": asdict(self.itl_s),
            "e2e_s": asdict(self.e2e_s),
            "goodput_requests_per_s": self.goodput_requests_per_s,
            "preemptions": self.preemptions,
            "time_share": dict(self.time_share),
            "switches": [_switch_json(switch) for switch in self.switches],
            "decisions": self.decisions,
            "steps": self.steps,
            "wall_s": self.wall_s,
        }


def run_result(
    layout: str,
    *,
    requests: Iterable[RequestTimes],
    gaps: Mapping[float, int],
    targets: Targets,
    preemptions: int,
    time_share: Mapping[str, float],
    switches: Iterable[SwitchRecord],
    samples: Iterable[Sample],
    decisions: int,
    steps: int,
    wall_s: float,
    refused: tuple[str, ...] = (),
) -> RunResult:
    """The result of a run whose requests have all finished or been refused; `gaps`: seconds between two tokens of a
    request, and how often they were those."""
    done = tuple(requests)
    makespan_s = max(r.last_token_s for r in done) - min(r.arrival_s for r in done) if done else 0.0
    output_tokens = sum(r.output_tokens for r in done)
    itl = Distribution.of(list(gaps), list(gaps.values()))
    good = sum(map(targets.met_by, done))
    return RunResult(
        layout=layout,
        makespan_s=makespan_s,
        num_requests=len(done),
        prompt_tokens=sum(r.prompt_tokens for r in done),
        output_tokens=output_tokens,
        output_tokens_per_s=_per_second(output_tokens, makespan_s),
        ttft_s=Percentiles.of([r.ttft_s for r in done]),
        tpot_s=Percentiles.of([r.tpot_s for r in done if r.tpot_s is not None]),
        itl_s=Percentiles.of(itl.values, itl.counts),
        e2e_s=Percentiles.of([r.e2e_s for r in done]),
        goodput_requests_per_s=_per_second(good, makespan_s) if targets else None,
        preemptions=preemptions,
        time_share=dict(time_share),
        switches=tuple(switches),
        samples=tuple(samples),
        requests=done,
        itl=itl,
        decisions=decisions,
        steps=steps,
        wall_s=wall_s,
        refused=refused,
    )


def results_json(runs: Sequence[RunResult]) -> dict[str, Any]:
    """`{"runs": [...]}`, in the order given."""
    return {"runs": [run.to_json() for run in runs]}


def _switch_json(switch: SwitchRecord) -> dict[str, Any]:
    return {
        "time_s": switch.time_s,
        "from": switch.old,
        "to": switch.new,
        "from_striped_from": switch.old_striped_from,
        "to_striped_from": switch.new_striped_from,
        "reason": switch.reason,
        "outcome": switch.outcome,
        "seconds": switch.seconds,
        "bytes": switch.bytes,
        "steps": switch.steps,
    }


def _per_second(number: float, seconds: float) -> float:
    """0 for a run that took no time at all."""
    return number / seconds if seconds > 0 else 0.0
