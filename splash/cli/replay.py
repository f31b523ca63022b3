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
    """Play a trace, as `splash run --trace FILE` writes it, in the live view; - is standard input."""
    from rich.console import Console

    from splash.cli import Interrupted
    from splash.cli.pace import Pace
    from splash.cli.summary import show_report
    from splash.core.events import EVENT_TYPES
    from splash.engine.report import RunReport
    from splash.engine.trace import read_trace
    from splash.tui.live import open_view

    events = tuple(EVENT_TYPES.values())
    records = read_trace(file)
    next(records)  # its header: what is no trace is refused before the screen changes
    console = Console()
    report = RunReport()
    pace = Pace(speed)
    stopped: BaseException | None = None
    with open_view(console, plain=no_tui, speed=speed or 1.0) as view:
        try:
            for record in records:
                if isinstance(record, events):
                    pace.wait(record.t)
                    view.sink(record)
                    report.event(record)
        except (KeyboardInterrupt, Interrupted) as signalled:
            stopped = signalled
    show_report(console, report)
    if stopped is not None:
        raise stopped
