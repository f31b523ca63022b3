"""Predictions of the policy, and the view at the scale of a simulation: many ranks, requests and hours."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace

import pytest
from rich.console import Console

from splash.core import events as e
from splash.tui import palette
from splash.tui.plain import PlainLines
from splash.tui.state import Snapshot, ViewState
from splash.tui.view import draw
from splash.tui.views.predicted import predicted
from tests.tui.stream import Run

PREDICTED = {"tp": 0.0193, "dop": 0.0131, "dp": 0.0121, "cp": 0.0301, "dcp": 0.0298}
SIZES = [(80, 24), (100, 30), (160, 45)]


def asked(
    t: float, step: int, chosen: str, reason: str = "", observed_s: float | None = 0.0197
) -> e.PolicyAsked:
    return e.PolicyAsked(t, step, "tp", chosen, reason, PREDICTED, observed_s)


def snapshot(*more: e.Event, ranks: int = 2, speed: float = 1.0) -> Snapshot:
    """The first steps of a run, then `more`."""
    state = ViewState(speed=speed)
    for event in Run(ranks=ranks, switches=(), last_step=20).events():
        if not isinstance(event, e.RunFinished):
            state.fold(event)
    for event in more:
        state.fold(event)
    return state.snapshot()


def frame(view: Snapshot, width: int, height: int) -> str:
    return "\n".join(line.plain for line in draw(view, width, height))


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_a_frame_shows_every_prediction(width: int, height: int) -> None:
    """Red when a layout's figure is lost, or the best or the present one cannot be told."""
    text = frame(snapshot(asked(0.5, 19, "tp"), ranks=8), width, height)
    shown = (
        "step, best first: D dp 12.1 ms",
        "O dop 13.1 ms",
        "T tp 19.3 ms, observed 19.7 ms",
        "S dcp 29.8 ms",
        "C cp 30.1 ms",
    )
    if width < 160:
        shown = ("ms, best first: D 12.1", "O 13.1", "T 19.3/19.7", "S 29.8", "C 30.1")
    places = [text.index(figure) for figure in shown]
    assert places == sorted(places), "the best first"


def test_without_predictions_there_is_nothing() -> None:
    """Red when a policy of thresholds seems to predict something."""
    view = snapshot()
    assert predicted(view, 200).plain == ""
    for width, height in SIZES:
        assert "best first" not in frame(view, width, height)
        assert "predicted" not in frame(view, width, height)


def test_what_does_not_fit_is_left_out_whole() -> None:
    """Red when a figure is cut, so that another one is read."""
    view = snapshot(asked(0.5, 19, "tp"))
    lengths = {predicted(view, width).cell_len for width in range(130)}
    assert len(lengths) == 6, "nothing and five forms"
    assert all(predicted(view, width).cell_len <= width for width in range(130))
    without = snapshot(asked(0.5, 19, "tp", observed_s=None))
    assert "observed" not in predicted(without, 200).plain


def test_predictions_have_the_colours_of_their_layouts() -> None:
    """Red when a figure has another layout's colour."""
    text = predicted(snapshot(asked(0.5, 19, "tp")), 200)
    for name in PREDICTED:
        begin = text.plain.index(f"{palette.letter(name)} {name}")
        (style,) = [span.style for span in text.spans if span.start <= begin < span.end]
        assert style in (palette.ink(name, True), palette.ink(name, False))


def test_the_reason_stays_while_the_target_does() -> None:
    """Red when nobody can see why requests are where they are."""
    change = asked(0.5, 19, "dp", "37 % less time")
    view = replace(snapshot(change), target="dp", running={"dp": 24}, switch=None)
    assert "all 24 running requests in dp since step 19: 37 % less time" in frame(view, 160, 45)
    elsewhere = replace(view, target="tp", running={"tp": 24})
    assert "37 % less time" not in frame(elsewhere, 160, 45).split("events")[0]


def test_plain_lines_tell_changes_only() -> None:
    """Red when every question makes a line, or a change has none."""
    console = Console(file=io.StringIO(), width=80)
    with PlainLines(console) as view:
        for event in (asked(0.1, 8, "tp"), asked(0.2, 16, "dp", "faster"), asked(0.3, 24, "tp")):
            view.sink(event)
    (line,) = console.file.getvalue().splitlines()
    assert "dp is wanted: predicted decode step dp 12.1 ms, dop 13.1 ms, tp 19.3 ms" in line
    assert line.endswith("tp took 19.7 ms")


# ---- the scale of a simulation


def slow(events: Iterator[e.Event], factor: float) -> Iterator[e.Event]:
    for event in events:
        yield replace(event, t=event.t * factor)


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_hours_of_thousands_of_requests_fit(width: int, height: int) -> None:
    """Red when large figures push a line over its width, or leave no event on view."""
    state = ViewState(speed=100.0)
    run = Run(ranks=8, requests=3000, note="simulated: no device of that name here", num_pages=400_000)
    for number, event in enumerate(slow(run.events(), 5000.0)):
        state.fold(event)
        if number % 900 == 0:
            lines = draw(state.snapshot(), width, height)
            assert [line.cell_len for line in lines] == [width] * height
    text = frame(state.snapshot(), width, height)
    assert state.t > 3600
    assert "simulated: no device" in text
    assert ":" in next(line for line in text.splitlines() if "└─" in line)
    assert any("switch dcp → tp done" in line or "run done" in line for line in text.splitlines()[-4:])


def test_a_fast_run_is_shown_in_the_time_of_its_viewer() -> None:
    """Red when a move is gone before it can be seen because the run is faster than its viewer."""
    stage = e.StageStarted(0.6, 20, 3, "tp", "dop", 0, 1, 4096, [[0, 4096], [0, 0]])
    flip = e.RequestFlipped(0.7, 21, 3, "tp", "dop", 1, 1, 4096)
    later = e.PoolSampled(4.0, [{"free": 1}] * 2, {"tp": 1}, 0, 0)
    for speed, is_seen in ((1.0, False), (10.0, True)):
        view = snapshot(stage, flip, later, speed=speed)
        assert ("T tp → O dop" in frame(view, 80, 24)) is is_seen
