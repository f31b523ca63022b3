"""The engine's loop: what is due reaches the scheduler, its plan the executor, the result comes back.

One step, all of it while ranks compute the step before:

    due commands -> schedule -> submit -> bookkeeping -> delivery of what has come (text, clients, events, trace)
    -> collect and update that step before

So ranks find their next plan when they end a step, and between two forward passes lies nothing of the engine's, unless
the scheduler waits for results (where memory is short, or nothing runs). A plan is made without the results of the step
before it: what that samples, the ranks know; who ends in it has one row more, whose token goes nowhere.
"""

from __future__ import annotations

import heapq
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import NamedTuple, Protocol

from splash.core.errors import CapacityError, RequestError
from splash.core.request import Request
from splash.engine.items import When
from splash.engine.trace import TraceWriter
from splash.sched.results import Output
from splash.sched.scheduler import Scheduler
from splash.sched.step import Executor, StepPlan, StepResult


@dataclass(frozen=True, slots=True)
class Submit:
    """`forced`: teacher forcing, the tokens that are appended whatever is sampled. `arrives_when_due`: its
    arrival is the boundary at which it becomes due (a step has no time before it comes)."""

    request: Request
    forced: tuple[int, ...] = ()
    arrives_when_due: bool = False


@dataclass(frozen=True, slots=True)
class Abort:
    request: int


@dataclass(frozen=True, slots=True)
class Retarget:
    layout: str
    reason: str


Command = Submit | Abort | Retarget
NOW = When()

PLANS_AHEAD = 1
"""Plans that ranks are given before the result of the one that they compute is in."""


class LatchedClock:
    """The time as the scheduler sees it: it passes at the loop's latches only, so a replay can repeat it."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._latched = 0.0

    def latch(self) -> float:
        self._latched = self._now_s()
        return self._latched

    def now(self) -> float:
        return self._latched


class _Entry(NamedTuple):
    step: int
    time_s: float
    number: int
    command: Command


class _Flight(NamedTuple):
    plan: StepPlan
    planned_s: float


class Inbox:
    """Commands on their way to the loop, from any thread, due at once or later.

    Submits have a count of steps of their own: when the loop is idle no step passes, so the step of the next
    submit counts as come, and those after it follow at the same distance.
    """

    def __init__(self) -> None:
        self._submits: list[_Entry] = []
        self._others: list[_Entry] = []
        self._ahead = 0
        """How far the submits' count of steps is ahead."""
        self._numbers = count()
        self._changed = threading.Condition()
        self._finishing = False
        self._closed = False

    def put(self, command: Command, when: When = NOW) -> None:
        with self._changed:
            entries = self._submits if isinstance(command, Submit) else self._others
            heapq.heappush(entries, _Entry(when.step, when.time_s, next(self._numbers), command))
            self._changed.notify()

    def finish(self) -> None:
        """Nothing more will come."""
        with self._changed:
            self._finishing = True
            self._changed.notify()

    def close(self) -> None:
        """What is left shall not be served."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def finished(self) -> bool:
        """Nothing more will come, and no submit is left."""
        with self._changed:
            return self._finishing and not self._submits

    def due(self, step: int, now_s: float, *, idle: bool) -> list[Command]:
        """Takes what is due at the boundary before `step`: submits, in order of step, time and coming, then others."""
        if not self._submits and not self._others:
            return []
        with self._changed:
            found = _take(self._submits, step + self._ahead, now_s)
            others = _take(self._others, step, now_s)
            if idle and not found and not others and self._submits:
                next_step = max(step + self._ahead, self._submits[0].step)
                found = _take(self._submits, next_step, now_s)
                self._ahead = next_step - step if found else self._ahead
        return [entry.command for entry in (*found, *others)]

    def wait(self, step: int, now_s: float) -> None:
        """Block an idle loop until something is due, or may be."""
        with self._changed:
            reached = max(step + self._ahead, self._submits[0].step) if self._submits else 0
            times = [entry.time_s for entry in self._submits if entry.step <= reached]
            times += [entry.time_s for entry in self._others if entry.step <= step]
            delay = min(times) - now_s if times else None
            if not self._closed and (delay > 0 if delay is not None else not self._finishing):
                self._changed.wait(delay)

    def withdraw(self, request_id: int) -> bool:
        """Takes back a submit that is not due yet."""
        with self._changed:
            for entry in self._submits:
                if isinstance(entry.command, Submit) and entry.command.request.id == request_id:
                    self._submits.remove(entry)
                    heapq.heapify(self._submits)
                    return True
        return False

    def drop(self) -> list[Command]:
        """Takes everything that is left, due or not."""
        with self._changed:
            left = sorted(self._submits) + sorted(self._others)
            self._submits, self._others = [], []
        return [entry.command for entry in left]


def _take(entries: list[_Entry], step: int, now_s: float) -> list[_Entry]:
    """Removes from the heap and gives what is due by step and time, in order."""
    found: list[_Entry] = []
    kept: list[_Entry] = []
    while entries and entries[0].step <= step:
        entry = heapq.heappop(entries)
        (found if entry.time_s <= now_s else kept).append(entry)
    for entry in kept:
        heapq.heappush(entries, entry)
    return found


class Outbox(Protocol):
    """Where results go, called while ranks compute."""

    def deliver(self, outputs: Sequence[Output]) -> None: ...

    def refuse(self, request: int, error: RequestError) -> None: ...

    def stepped(self, plan: StepPlan, result: StepResult) -> None: ...


class Loop:
    """Runs steps until its inbox is closed, then aborts what is left. Everything happens in one thread."""

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        executor: Executor,
        clock: LatchedClock,
        inbox: Inbox,
        outbox: Outbox,
        trace: TraceWriter | None = None,
        ahead: int = PLANS_AHEAD,
    ) -> None:
        """`ahead`: of the results in hand; 0: ranks wait while the engine takes a result and plans the next step."""
        self._scheduler = scheduler
        self._executor = executor
        self._clock = clock
        self._inbox = inbox
        self._outbox = outbox
        self._trace = trace
        self._ahead = ahead
        self._flights: deque[_Flight] = deque()
        self._next_step = 0
        self._live: set[int] = set()
        self._outputs: list[Output] = []
        self._notes: list[Callable[[], None]] = []

    def run(self) -> bool:
        """Whether everything that was submitted has been served (the inbox was finished, not closed)."""
        while not self._inbox.closed:
            if not self.step():
                if self._inbox.finished:
                    return True
                self._inbox.wait(self._next_step, self._clock.latch())
        self._abort_all()
        return False

    def step(self) -> bool:
        """Plan a step and take an older one's result; False if there is nothing to do."""
        planned_s = self._clock.latch()
        self._obey(self._inbox.due(self._next_step, planned_s, idle=not self._scheduler.has_work()))
        plan = self._scheduler.schedule()
        if plan is not None:
            self._next_step = plan.step + 1
            self._executor.submit(plan)
            self._flights.append(_Flight(plan, planned_s))
            self._scheduler.prepare()
        elif not self._flights:
            self._scheduler.drain_events()
            self._hand_on()
            if self._scheduler.has_work():
                raise CapacityError("requests wait, nothing runs, and none of them can be given pages")
            return False
        self._hand_on()
        if plan is None or len(self._flights) > self._ahead:
            self._collect()
        return True

    def _collect(self) -> None:
        """The result of the oldest step in flight."""
        result = self._executor.collect()
        collected_s = self._clock.latch()
        plan, planned_s = self._flights.popleft()
        self._take(self._scheduler.update(result))
        self._notes.append(partial(self._outbox.stepped, plan, result))
        if self._trace:
            times = {"planned_s": planned_s, "collected_s": collected_s}
            self._notes.append(partial(self._trace.step, plan, result, **times))

    def _obey(self, commands: Sequence[Command]) -> None:
        for command in commands:
            match command:
                case Submit(request, forced, arrives_when_due):
                    if arrives_when_due:
                        request = replace(request, arrival_s=self._clock.now())
                    self._add(request, forced)
                case Abort(request_id):
                    self._abort(request_id)
                case Retarget(layout, reason):
                    self._scheduler.set_target(layout, reason)
                    if self._trace:
                        self._notes.append(partial(self._trace.target, self._next_step, layout, reason))

    def _add(self, request: Request, forced: tuple[int, ...]) -> None:
        """It was checked when it was submitted, but the target, and so the room, may have changed since."""
        try:
            self._scheduler.add(request, forced)
        except RequestError as error:
            self._outbox.refuse(request.id, error)
            return
        self._live.add(request.id)
        if self._trace:
            self._notes.append(partial(self._trace.submit, self._next_step, request, forced))

    def _abort(self, request_id: int) -> None:
        """Of what has finished already it is void: the client could not know."""
        if request_id not in self._live:
            withdrawn = self._inbox.withdraw(request_id)
            self._take([Output(request_id, (), "abort")] if withdrawn else [])
            return
        output = self._scheduler.abort(request_id)
        self._take([output] if output else [])
        if self._trace:
            self._notes.append(partial(self._trace.abort, self._next_step, request_id))

    def _take(self, outputs: Sequence[Output]) -> None:
        self._outputs += outputs
        self._live.difference_update(o.request for o in outputs if o.finish_reason)

    def _hand_on(self) -> None:
        """Everything about the steps whose results are in that no plan needs."""
        notes, self._notes = self._notes, []
        for note in notes:
            note()
        if self._outputs:
            outputs, self._outputs = self._outputs, []
            self._outbox.deliver(outputs)

    def _abort_all(self) -> None:
        """Requests that are not due yet never arrived; the others end with `abort`."""
        while self._flights:
            self._collect()
        self._clock.latch()
        never = [Output(c.request.id, (), "abort") for c in self._inbox.drop() if isinstance(c, Submit)]
        for request_id in sorted(self._live):
            self._abort(request_id)
        self._take(never)
        self._scheduler.rest()
        self._scheduler.drain_events()
        self._hand_on()
