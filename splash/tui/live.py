"""The live view on a terminal, and the choice between it and plain lines."""

from __future__ import annotations

import io
import sys
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from threading import Event as Flag
from threading import Lock, Thread
from types import TracebackType

from rich.console import Console
from rich.live import Live

from splash.core.events import Event
from splash.tui.plain import PlainLines
from splash.tui.state import Snapshot, ViewState
from splash.tui.view import Frame, last_look

MAX_REFRESH_PER_S = 10.0

SWITCH_INTERVAL_S = 0.0005
"""The interpreter's while a view draws: a step waits at most that long for a frame (a frame takes some 5 ms)."""


def open_view(console: Console, *, plain: bool, speed: float = 1.0) -> LiveView | PlainLines:
    """A context manager whose `sink` takes the events of a run.

    Live on a terminal; plain lines if asked for, or where there is no terminal that can move its cursor. `speed`:
    seconds of the run in one of the viewer's.
    """
    if is_live(console, plain=plain):
        return LiveView(console, speed=speed)
    return PlainLines(console, interval_s=speed)


def is_live(console: Console, *, plain: bool) -> bool:
    """Whether `open_view` would draw frames."""
    return not plain and console.is_terminal and not console.is_dumb_terminal


class LiveView:
    """Folds in the caller's thread, which is cheap, and draws in a thread of its own.

    The drawing thread takes the lock only to copy a snapshot, and draws nothing while nothing is new. What
    the process would write over the frame through its other standard stream is kept until the view closes.
    """

    def __init__(self, console: Console, *, refresh_per_s: float = 6.0, speed: float = 1.0) -> None:
        self._console = console
        self._pause_s = 1.0 / min(refresh_per_s, MAX_REFRESH_PER_S)
        self._state = ViewState(speed=speed)
        self._lock = Lock()
        self._stop = Flag()
        self._thread = Thread(target=self._draw_until_stopped, name="splash-view", daemon=True)
        self._stack = ExitStack()
        self._written = io.StringIO()
        self._live = Live(
            get_renderable=lambda: Frame(self.snapshot()),
            console=console,
            screen=console.is_terminal,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def sink(self, event: Event) -> None:
        """Called for each event, by one thread, in order."""
        with self._lock:
            self._state.fold(event)

    def snapshot(self) -> Snapshot:
        with self._lock:
            return self._state.snapshot()

    def __enter__(self) -> LiveView:
        self._stack.callback(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        self._stack.enter_context(self._live)
        for stream, redirect in ((sys.stdout, redirect_stdout), (sys.stderr, redirect_stderr)):
            if stream is not self._console.file and stream.isatty():
                self._stack.enter_context(redirect(self._written))
        self._live.refresh()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leaves the alternate screen, and leaves behind what the run looked like over time."""
        self._stop.set()
        self._thread.join()
        self._stack.close()
        for text in last_look(self.snapshot(), self._console.width):
            self._console.print(text)
        sys.stderr.write(self._written.getvalue())

    def _draw_until_stopped(self) -> None:
        drawn = (-1, self._console.size)
        while not self._stop.wait(self._pause_s):
            now = (self._state.version, self._console.size)
            if now != drawn:
                self._live.refresh()
                drawn = now
