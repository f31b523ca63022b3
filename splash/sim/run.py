"""One workload served on a virtual clock, by the engine's own scheduler.

A step is: what is due arrives, the scheduler plans, the executor prices, the result comes back. Where the scheduler is
sure that the next steps only repeat the last one, they are made at once.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from splash.core.errors import CapacityError, RequestError
from splash.core.events import Event, EventSink, RunStarted
from splash.core.params import SamplingParams
from splash.core.request import Request, check_prompt
from splash.sched.results import Output
from splash.sched.scheduler import Scheduler
from splash.sched.step import Executor, StepPlan
from splash.sim.clock import VirtualClock, seconds
from splash.sim.workload import Arrival, Workload

MAX_JUMP = 256
"""Steps that are priced at once."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A request that is too long to be made: its prompt alone could take all memory."""

    id: int
    error: RequestError


class Source(Protocol):
    """Requests that have not come yet."""

    @property
    def next_ns(self) -> int | None:
        """When the next one comes; None if none is due at a known time."""
        ...

    def take(self, now_ns: int) -> Iterable[Request | Refused]:
        """Those that have come by now, in order."""
        ...

    def ended(self, request: int, now_ns: int) -> None:
        """A request has ended."""
        ...


class SimulatedExecutor(Executor, Protocol):
    """Results without ranks: it moves the clock."""

    def begin(self) -> None:
        """There is work, and a step is about to be planned: the clock moves to when that is."""
        ...

    def forget(self, requests: Iterable[int]) -> None:
        """Those have left, and no plan will say so."""
        ...

    @property
    def due(self) -> bool:
        """The oldest result comes before the next step is planned."""
        ...

    def ends_ahead(self, num_steps: int) -> list[int]:
        """When each of the next `num_steps` steps of the present decodes will end, nanoseconds."""
        ...

    def advance(self, num_steps: int, end_ns: int) -> None:
        """The present decodes have made `num_steps` steps, the last of which ended at `end_ns`."""
        ...


class Arrivals:
    """Of a workload. One that waits for another is due once that has ended; ids are places in the workload.

    `limit`: tokens of a request, prompt and output together.
    """

    def __init__(self, workload: Workload, limit: int) -> None:
        self._arrivals = workload.arrivals
        self._limit = limit
        self._due = [(x.time_ns, index) for index, x in enumerate(self._arrivals) if x.after is None]
        self._followers: dict[int, list[int]] = defaultdict(list)
        for index, arrival in enumerate(self._arrivals):
            if arrival.after is not None:
                self._followers[arrival.after].append(index)
        heapq.heapify(self._due)

    @property
    def next_ns(self) -> int | None:
        return self._due[0][0] if self._due else None

    def take(self, now_ns: int) -> Iterable[Request | Refused]:
        while self._due and self._due[0][0] <= now_ns:
            time_ns, index = heapq.heappop(self._due)
            yield _request(index, self._arrivals[index], time_ns, self._limit)

    def ended(self, request: int, now_ns: int) -> None:
        """Those that wait for it come after their delay."""
        for follower in self._followers.pop(request, ()):
            arrival = self._arrivals[follower]
            heapq.heappush(self._due, (max(arrival.time_ns, now_ns + arrival.delay_ns), follower))


def _request(index: int, arrival: Arrival, time_ns: int, limit: int) -> Request | Refused:
    try:
        check_prompt(arrival.prompt_tokens, limit)
    except RequestError as error:
        return Refused(index, error)
    params = SamplingParams(max_tokens=arrival.output_tokens, ignore_eos=True)
    return Request(index, (0,) * arrival.prompt_tokens, params, arrival_s=seconds(time_ns))


class Simulation:
    """Drives a scheduler and an executor over one workload. Made for one run."""

    def __init__(
        self,
        *,
        scheduler: Callable[[VirtualClock, EventSink], Scheduler],
        executor: Callable[[VirtualClock], SimulatedExecutor],
        source: Source,
        sinks: Iterable[EventSink],
        started: RunStarted,
        switches: Sequence[tuple[int, str]] = (),
        jumps: bool = True,
        on_plan: Callable[[StepPlan], None] | None = None,
    ) -> None:
        """`scheduler` and `executor` are made on the run's clock. `switches`: (step, layout) at which that layout
        becomes the target, and stays it. `jumps` False takes every step by itself (a test).
        `on_plan` sees the plan of each step that is taken by itself."""
        self._clock = VirtualClock()
        self._sinks = tuple(sinks)
        self._scheduler = scheduler(self._clock, self._emit)
        self._executor = executor(self._clock)
        self._source = source
        self._switches = deque(sorted(switches, key=lambda switch: switch[0]))
        self._jumps = jumps
        self._on_plan = on_plan
        self.refused: list[tuple[int, RequestError]] = []
        """Requests that could not be served, by id."""
        self._emit(started)

    def step(self) -> bool:
        """One step, or several alike; False when nothing is left to do."""
        self._take_arrivals()
        if self._scheduler.has_work():
            self._executor.begin()
            self._take_arrivals()
        self._take_switches()
        if self._jumps and self._jump():
            return True
        if self._single():
            return True
        next_ns = self._source.next_ns
        if next_ns is None:
            return False
        self._clock.move_to(max(self._clock.now_ns, next_ns))
        return True

    def pause(self, duration_ns: int) -> None:
        """Nothing runs for a while."""
        self._clock.move_to(self._clock.now_ns + duration_ns)

    @property
    def scheduler(self) -> Scheduler:
        return self._scheduler

    @property
    def now_s(self) -> float:
        """The virtual clock."""
        return self._clock.now()

    # ---- parts

    def _take_arrivals(self) -> None:
        for request in self._source.take(self._clock.now_ns):
            if isinstance(request, Refused):
                self._refuse(request.id, request.error)
                continue
            try:
                self._scheduler.add(request)
            except RequestError as error:
                self._refuse(request.id, error)

    def _refuse(self, request: int, error: RequestError) -> None:
        self.refused.append((request, error))
        self._source.ended(request, self._clock.now_ns)

    def _take_switches(self) -> None:
        while self._switches and self._switches[0][0] <= self._scheduler.next_step:
            step, layout = self._switches.popleft()
            self._scheduler.set_target(layout, f"--switch {step}:{layout}")

    def _single(self) -> bool:
        scheduler = self._scheduler
        plan = scheduler.schedule()
        if plan is not None:
            if self._on_plan is not None:
                self._on_plan(plan)
            self._executor.submit(plan)
            scheduler.prepare()
        elif not scheduler.in_flight:
            scheduler.drain_events()
            if scheduler.has_work():
                raise CapacityError("requests wait, nothing runs, and none of them can be given pages")
            return False
        else:
            self._collect()
        while scheduler.in_flight and self._executor.due:
            self._collect()
        return True

    def _collect(self) -> None:
        self._take_outputs(self._scheduler.update(self._executor.collect()))

    def _jump(self) -> bool:
        """Steps that end before the next arrival, all but the last of them, and before the next switch."""
        steady = self._scheduler.steady
        stretch = steady.ahead()
        num_steps = min(stretch.num_steps, MAX_JUMP)
        if self._switches:
            num_steps = min(num_steps, self._switches[0][0] - self._scheduler.next_step)
        if num_steps < 1:
            return False
        start_ns = self._clock.now_ns
        self._executor.forget(steady.gone)
        ends = self._executor.ends_ahead(num_steps)
        next_ns = self._source.next_ns
        if next_ns is not None:
            ends = ends[: sum(end < next_ns for end in ends) + 1]
        starts = [start_ns, *ends]
        times = [(seconds(a), seconds(b)) for a, b in zip(starts, ends, strict=False)]
        made = steady.jump(times, stretch)
        if made:
            self._executor.advance(made, ends[made - 1])
            self._take_outputs(steady.end(*times[made - 1]))
        return made > 0

    def _take_outputs(self, outputs: Iterable[Output]) -> None:
        for output in outputs:
            if output.finish_reason is not None:
                self._source.ended(output.request, self._clock.now_ns)

    def _emit(self, event: Event) -> None:
        for sink in self._sinks:
            sink(event)
