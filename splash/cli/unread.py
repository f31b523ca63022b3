"""A run whose view nobody reads any more, as of `splash run | head -3`, ends with what there is."""

from __future__ import annotations

from collections.abc import Callable

from splash.core.events import Event, EventSink


class WhileRead:
    """A view's sink, called in the engine's thread; a closed pipe does not fail the run there but stops it."""

    def __init__(self, sink: EventSink) -> None:
        self._sink = sink
        self._stop: Callable[[], None] | None = None
        self.error: BrokenPipeError | None = None
        """Of the pipe, once it is closed."""

    def sink(self, event: Event) -> None:
        try:
            self._sink(event)
        except BrokenPipeError as error:
            self.error = error
            if self._stop is not None:
                self._stop()

    def stop_by(self, stop: Callable[[], None]) -> None:
        """`stop` is called at once if the pipe is closed already."""
        self._stop = stop
        if self.error is not None:
            stop()
