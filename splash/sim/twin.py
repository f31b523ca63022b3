"""A run that really was, in the simulator: requests come when they came, and steps take what they took.

The scheduler plans anew. That its plans are those of the run is what makes the simulator a twin of the engine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from splash.core.request import Request
from splash.sched.step import StepPlan, StepResult
from splash.sim.clock import VirtualClock
from splash.sim.workload import nanoseconds


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """`planned_s` and `collected_s`: the engine's clock when it planned the step, and when it had the result."""

    planned_s: float
    collected_s: float
    result: StepResult


class RecordedArrivals:
    """A `Source` of requests that came in this order, each at its time of arrival."""

    def __init__(self, requests: Iterable[Request]) -> None:
        self._left = deque(requests)

    @property
    def next_ns(self) -> int | None:
        return nanoseconds(self._left[0].arrival_s) if self._left else None

    def take(self, now_ns: int) -> Iterable[Request]:
        while self._left and nanoseconds(self._left[0].arrival_s) <= now_ns:
            yield self._left.popleft()

    def ended(self, request: int, now_ns: int) -> None:
        """Nobody waits for another."""


class RecordedExecutor:
    """A `SimulatedExecutor` that gives the results of a run, at their times: tokens, acknowledgements, seconds."""

    def __init__(self, steps: Iterable[RecordedStep], clock: VirtualClock) -> None:
        self._left = deque(steps)
        self._flights: deque[RecordedStep] = deque()
        self._clock = clock

    def begin(self) -> None:
        if self._left:
            self._clock.move_to(max(self._clock.now_ns, nanoseconds(self._left[0].planned_s)))

    def submit(self, plan: StepPlan) -> None:
        assert self._left, f"step {plan.step} was not recorded"
        assert plan.step == self._left[0].result.step
        self._flights.append(self._left.popleft())

    def collect(self) -> StepResult:
        step = self._flights.popleft()
        self._clock.move_to(nanoseconds(step.collected_s))
        return step.result

    @property
    def due(self) -> bool:
        """As it was: an engine plans ahead of results where it can."""
        return not self._left or self._flights[0].collected_s <= self._left[0].planned_s

    def close(self) -> None:
        """Nothing to end."""

    def forget(self, requests: Iterable[int]) -> None:
        """Recorded results do not depend on it."""

    def ends_ahead(self, num_steps: int) -> list[int]:
        """Every step is taken by itself."""
        return []

    def advance(self, num_steps: int, end_ns: int) -> None:
        raise AssertionError("recorded steps are taken one by one")
