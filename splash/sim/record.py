"""Folds the events of a simulated run into its result."""

from __future__ import annotations

from collections import Counter, defaultdict

from splash.core.events import (
    Event,
    FirstToken,
    PolicyAsked,
    PoolSampled,
    RequestArrived,
    RequestFinished,
    RequestPreempted,
    RequestResumed,
    RunStarted,
    StepDone,
    SwitchDone,
    TargetChanged,
)
from splash.sim.result import RequestTimes, RunResult, Sample, SwitchRecord, Targets, run_result


class Recorder:
    """An event sink."""

    def __init__(self) -> None:
        self._prompts: dict[int, int] = {}
        self._first: dict[int, tuple[float, float]] = {}
        """(arrival, first token), seconds."""
        self._done: list[RequestTimes] = []
        self._gaps: Counter[float] = Counter()
        self._shares: defaultdict[str, float] = defaultdict(float)
        """Seconds by target."""
        self._switches: list[SwitchRecord] = []
        self._samples: list[Sample] = []
        self._preemptions = self._decisions = self._steps = 0
        self._target = ""
        self._since_s = self._last_s = 0.0
        self._tokens = self._sampled_tokens = 0
        self._sampled_s = 0.0

    def __call__(self, event: Event) -> None:
        match event:
            case StepDone():
                self._step(event)
            case RequestArrived():
                self._prompts[event.request] = event.num_prompt
            case FirstToken():
                self._first[event.request] = event.t - event.ttft_s, event.t
            case RequestFinished():
                self._finished(event)
            case RequestPreempted():
                self._preemptions += 1
            case RequestResumed():
                self._gaps[event.gap_s] += 1
            case RunStarted():
                self._target, self._since_s = event.target, event.t
            case TargetChanged():
                self._shares[event.old] += event.t - self._since_s
                self._target, self._since_s = event.new, event.t
            case SwitchDone():
                self._switches.append(
                    SwitchRecord(
                        event.t - event.seconds,
                        event.old,
                        event.new,
                        event.reason,
                        event.seconds,
                        event.bytes_received,
                        event.steps,
                        event.outcome,
                        event.old_striped_from,
                        event.new_striped_from,
                    )
                )
            case PolicyAsked():
                self._decisions += 1
            case PoolSampled():
                self._sample(event)
            case _:
                pass

    def result(
        self, layout: str, *, targets: Targets, wall_s: float, refused: tuple[str, ...] = ()
    ) -> RunResult:
        """Of a run that has ended. `refused`: which requests could not be served at all, and why."""
        shares = defaultdict(float, self._shares)
        shares[self._target] += self._last_s - self._since_s
        total = sum(shares.values()) or 1.0
        return run_result(
            layout,
            requests=self._done,
            gaps=self._gaps,
            targets=targets,
            preemptions=self._preemptions,
            time_share={name: share / total for name, share in shares.items() if share > 0},
            switches=self._switches,
            samples=self._samples,
            decisions=self._decisions,
            steps=self._steps,
            wall_s=wall_s,
            refused=refused,
        )

    def _finished(self, event: RequestFinished) -> None:
        arrival_s, first_s = self._first.pop(event.request)
        prompt = self._prompts.pop(event.request)
        self._done.append(RequestTimes(arrival_s, first_s, event.t, prompt, event.num_tokens))

    def _step(self, event: StepDone) -> None:
        """Each decode row gets its token as long after the one before it as the last step with rows is ago."""
        if event.decode_rows:
            self._gaps[event.t - self._last_s] += event.decode_rows
        self._last_s = event.t
        self._steps += 1
        self._tokens += event.tokens

    def _sample(self, event: PoolSampled) -> None:
        used = total = 0
        for pages in event.pages:
            here = sum(pages.values()) - pages["weight"]
            total += here
            used += here - pages["free"]
        passed = event.t - self._sampled_s
        rate = (self._tokens - self._sampled_tokens) / passed if passed > 0 else 0.0
        self._sampled_s, self._sampled_tokens = event.t, self._tokens
        self._samples.append(
            Sample(
                event.t,
                self._target,
                sum(event.running.values()),
                event.waiting,
                used / total if total else 0.0,
                rate,
            )
        )
