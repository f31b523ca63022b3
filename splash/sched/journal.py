"""Events on their way out: queued at the batch boundary, handed on while the ranks compute."""

from __future__ import annotations

from splash.core.events import Event, EventSink
from splash.sched.step import Clock


class Journal:
    """The time, and a queue of events that `drain` empties into the sink, in order."""

    def __init__(self, clock: Clock, sink: EventSink) -> None:
        self._clock = clock
        self._sink = sink
        self._events: list[Event] = []

    def now(self) -> float:
        return self._clock.now()

    def emit(self, event: Event) -> None:
        self._events.append(event)

    def drain(self) -> None:
        events, self._events = self._events, []
        for event in events:
            self._sink(event)
