"""A bar on standard error while ranks load a large checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

SILENT_S = 2.0
"""Loading that takes less is not worth a bar."""


class LoadingBar:
    """Called with the number of layers loaded so far; gone without a trace when it is left.

    Nothing is shown for the first two seconds, if `plain`, or where standard error is no terminal.
    """

    def __init__(
        self,
        num_layers: int,
        *,
        plain: bool,
        console: Console | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._num_layers = num_layers
        self._plain = plain
        self._console = console
        self._now_s = now_s
        self._started_s = now_s()
        self._bar: Progress | None = None

    def __call__(self, layers: int) -> None:
        if self._bar is None and not self._plain and self._now_s() - self._started_s >= SILENT_S:
            self._bar = self._open()
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=layers)

    def _open(self) -> Progress:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        console = self._console or Console(stderr=True)
        columns = (
            TextColumn("loading"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("layers"),
            TimeRemainingColumn(),
        )
        bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        bar.add_task("loading", total=self._num_layers)
        bar.start()
        return bar

    def __enter__(self) -> LoadingBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
