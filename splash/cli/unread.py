"""A run whose view or trace nobody reads any more, as of `splash run | head -3`, ends with what there is."""

from __future__ import annotations

from collections.abc import Callable

from splash.core.events import Event, EventSink


class WhileRead:
    """Told of a closed pipe in the engine's thread, it does not fail the run there but stops it."""

    def __init__(self) -> None:
        self._stop: Callable[[], None] | None = None
        self.error: BrokenPipeError | None = None
        """Of the pipe, once one is closed."""

    def guarded(self, sink: EventSink) -> EventSink:
        """The same sink, which tells here of a closed pipe instead of raising."""

        def guarded_sink(event: Event) -> None:
            try:
                sink(event)
            except BrokenPipeError as error:
                self.end(error)

        return guarded_sink

    def end(self, error: BrokenPipeError) -> None:
        self.error = error
        if self._stop is not None:
            self._stop()

    def stop_by(self, stop: Callable[[], None]) -> None:
        """`stop` is called at once if a pipe is closed already."""
        self._stop = stop
        if self.error is not None:
            stop()
