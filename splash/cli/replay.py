"""`splash replay FILE`: a trace in the live view, at its own pace or faster."""

from __future__ import annotations

from pathlib import Path

import click

from splash.cli.numbers import FROM_ZERO


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
    from splash.core.events import EVENT_TYPES
    from splash.engine.report import RunReport
    from splash.engine.trace import TraceError, read_trace
    from splash.tui.live import open_view
    from splash.tui.units import show_clock

    events = tuple(EVENT_TYPES.values())
    records = read_trace(file)
    next(records)  # its header: what is no trace is refused before the screen changes
    console = output_console({})
    report = RunReport()
    pace, last = Pace(speed), 0.0
    stopped: BaseException | None = None
    with open_view(console, plain=no_tui, speed=speed or 1.0) as view:
        try:
            for record in records:
                if isinstance(record, events):
                    pace.wait(record.t)
                    view.sink(record)
                    report.event(record)
                    last = record.t
            if report.finished is None:
                raise TraceError(
                    f"{file} was cut short, {show_clock(last)} after its run began: it has no end"
                )
        except (KeyboardInterrupt, Interrupted, TraceError) as early:
            stopped = early
    show_report(console, report)
    if stopped is not None:
        raise stopped
