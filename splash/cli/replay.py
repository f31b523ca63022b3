"""`splash replay FILE`: a trace in the live view, at its own pace or faster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from splash.cli.numbers import FROM_ZERO

if TYPE_CHECKING:
    from splash.core.events import Event
    from splash.engine.trace import Record


@click.command("replay")
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
@click.option(
    "--speed",
    type=FROM_ZERO,
    default=1.0,
    show_default=True,
    help="Times faster than it was; 0: without waiting.",
)
@click.option("--no-tui", is_flag=True, help="Plain lines instead of the live view.")
def command(file: Path, speed: float, no_tui: bool) -> None:
    """Play a trace, as `splash run --trace FILE` writes it, in the live view; - is standard input.

    Of a trace that is cut short, or has a line that is none, what stands before is played and summed up; then a line
    says so, and the exit code is 2.
    """
    from splash.cli import Interrupted
    from splash.cli.output import output_console
    from splash.cli.pace import Pace
    from splash.cli.summary import show_report
    from splash.engine.report import RunReport
    from splash.engine.trace import TraceError, read_trace
    from splash.tui.live import open_view
    from splash.tui.units import show_clock

    records = read_trace(file)
    next(records)  # its header: what is no trace is refused before the screen changes
    console = output_console({})
    report = RunReport()
    pace, last = Pace(speed), 0.0
    stopped: BaseException | None = None
    with open_view(console, plain=no_tui, speed=speed or 1.0) as view:
        try:
            for event in _events(records, file):
                pace.wait(event.t)
                view.sink(event)
                report.event(event)
                last = event.t
            if report.finished is None:
                raise TraceError(
                    f"{file} was cut short, {show_clock(last)} after its run began: it has no end"
                )
        except (KeyboardInterrupt, Interrupted, TraceError) as early:
            stopped = early
    show_report(console, report)
    if stopped is not None:
        raise stopped


def _events(records: Iterator[Record], file: Path) -> Iterator[Event]:
    """Those of a trace behind its header, a record a line; TraceError at the first that is earlier than the last."""
    from splash.core.events import EVENT_TYPES
    from splash.engine.trace import TraceError

    events, last = tuple(EVENT_TYPES.values()), 0.0
    for line, record in enumerate(records, start=2):
        if not isinstance(record, events):
            continue
        if record.t < last:
            raise TraceError(
                f"{file}:{line}: the event is at {record.t:.9g} s and the one before it at {last:.9g} s;"
                " the times of a trace do not run backwards"
            )
        last = record.t
        yield record
