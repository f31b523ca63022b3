"""One frame of a run as an SVG picture: `python -m splash.tui.svg TRACE OUT --at SECONDS --width 120`."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
from rich.console import Console
from rich.terminal_theme import TerminalTheme

from splash.core.errors import ConfigError, SplashError, file_errors
from splash.core.events import Event, from_json
from splash.tui.state import Snapshot, ViewState
from splash.tui.view import Frame

_BACK, _FORE = (20, 22, 28), (214, 219, 228)
THEME = TerminalTheme(
    _BACK,
    _FORE,
    [
        _BACK,
        (232, 112, 90),
        (98, 180, 130),
        (230, 159, 0),
        (102, 120, 232),
        (184, 61, 131),
        (111, 211, 240),
        _FORE,
    ],
)
"""The panels bring their own colours; these are the ground and the sixteen that a terminal has."""


def read_events(path: Path) -> Iterator[Event]:
    """The events of a trace: one JSON object a line; records of another kind are passed over."""
    with file_errors(f"read the trace {path}", ConfigError):
        lines = path.read_text(encoding="utf-8").splitlines()
    for number, text in enumerate(lines, start=1):
        try:
            data = json.loads(text) if text.strip() else {}
            if isinstance(data, dict) and data.pop("kind", "event") == "event" and "event" in data:
                yield from_json(data)
        except ValueError as error:
            raise ConfigError(f"{path}:{number}: {error}") from None


def snapshot_at(events: Iterable[Event], at: float | None) -> Snapshot:
    """The state once every event up to second `at` is folded; all of them if it is None."""
    state = ViewState()
    for event in events:
        if at is None or event.t <= at:
            state.fold(event)
    return state.snapshot()


def frame_svg(view: Snapshot, *, width: int = 120, height: int = 36, title: str = "splash") -> str:
    """The frame as rich draws it, exported as SVG."""
    console = Console(
        record=True, width=width, height=height, file=io.StringIO(), force_terminal=True,
        color_system="truecolor", legacy_windows=False,
    )  # fmt: skip
    console.print(Frame(view, height=height))
    return console.export_svg(title=title, theme=THEME, unique_id="splash")


@click.command(help="Draw one frame of the run that TRACE recorded, and write it to OUT as SVG.")
@click.argument("trace", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--at", type=float, default=None, help="Second of the run; its end if not given.")
@click.option("--width", type=click.IntRange(40, 300), default=120, show_default=True, help="Columns.")
@click.option("--height", type=click.IntRange(10, 100), default=36, show_default=True, help="Rows.")
@click.option("--title", default="splash run", show_default=True, help="Title of the window in the picture.")
def main(trace: Path, out: Path, at: float | None, width: int, height: int, title: str) -> None:
    try:
        view = snapshot_at(read_events(trace), at)
    except SplashError as error:
        raise click.ClickException(str(error)) from None
    out.write_text(frame_svg(view, width=width, height=height, title=title), encoding="utf-8")
    click.echo(f"{out}: second {view.t:.2f}, step {view.step}")


if __name__ == "__main__":
    main()
