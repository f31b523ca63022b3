"""Frames at every size: each fact is there, each line fits, nothing wraps, nothing jumps."""

import io
from collections.abc import Iterator
from dataclasses import replace

import pytest
from rich.console import Console

from splash.core import events as e
from splash.tui.palette import FAINT, LAYOUT_LETTERS, STRONG
from splash.tui.plain import status_lines
from splash.tui.state import RankState, Snapshot, ViewState
from splash.tui.texts import describe
from splash.tui.view import Frame, draw, last_look
from splash.tui.views.lines import apportion, fold
from splash.tui.views.lines import line as line_of
from splash.tui.views.ranks import strip
from splash.tui.views.requests import requests, rows_of_step
from splash.tui.views.transitions import arrow
from tests.tui.stream import Run

SIZES = [(80, 24), (100, 30), (120, 36), (160, 45), (200, 60), (300, 80), (60, 20), (40, 10), (20, 5), (3, 2)]


def views(run: Run, every: int = 1) -> Iterator[Snapshot]:
    """Snapshots along a run, before the first event and after the last."""
    state = ViewState()
    yield state.snapshot()
    for number, event in enumerate(run.events()):
        state.fold(event)
        if number % every == 0:
            yield state.snapshot()
    yield state.snapshot()


def text_of(view: Snapshot, width: int, height: int, *, colour: bool = False) -> str:
    """What a console of that size shows, as text."""
    console = Console(
        record=True, width=width, height=height, file=io.StringIO(), force_terminal=True,
        color_system="truecolor" if colour else None,
    )  # fmt: skip
    console.print(Frame(view, height=height))
    return console.export_text()


def in_mid_switch(**options) -> Snapshot:
    """Some requests have flipped, weights are arriving, copies are under way."""
    state = ViewState()
    for event in Run(num_pages=700, **options).events():
        state.fold(event)
        if state.t > 0.5 and isinstance(event, e.CopyProgress) and 0 < event.weight_bytes_left < 3_000_000:
            break
    return state.snapshot()


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_frames_fit_exactly(width: int, height: int, ranks: int) -> None:
    """Red when any line of any moment is wider or narrower than the console, or a frame grows."""
    for view in views(Run(ranks=ranks, note="simulated: the profile of a device that is not here"), every=25):
        lines = draw(view, width, height)
        assert len(lines) == height
        assert {line.cell_len for line in lines} == {width}
        assert not any("\n" in line.plain for line in lines)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 24), (100, 40), (160, 45)])
def test_the_console_wraps_nothing(width: int, height: int) -> None:
    """Red when rich folds a line, or a frame leaves more lines than the console has."""
    for view in views(Run(ranks=4), every=60):
        lines = text_of(view, width, height).splitlines()
        assert len(lines) == height
        assert all(len(line) == width for line in lines)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 36), (160, 45)])
def test_a_frame_in_mid_switch_shows_every_part(width: int, height: int) -> None:
    """Red when a panel is lost, or one of its facts."""
    text = text_of(in_mid_switch(), width, height)
    for fact in (
        "splash-demo (deepseek_v3, 3.1 M)", "on cpu, 2 ranks", "D dp", "policy auto", "tok/s", "running 24",
        "waiting 0", "ranks", "% free", "18 rows", "█", "▒", "own", "filling", "w weight", "r reserved", "TTTTT",
        "OOOO", "T tp", "O dop", "12", "transitions", "switch T tp → D dp", "24 short requests",
        "24 flips left", "T tp → O dop", "24 requests", "12 flips left", "━━", "KiB of 96.0 KiB", "weights",
        "MiB of 5.7 MiB", "last", "layouts over time", "target", "events", "12 requests flip tp → dop",
    ):  # fmt: skip
        assert fact in text, fact


def test_a_wide_frame_shows_more() -> None:
    """Red when 160 columns show no more than 80."""
    text = text_of(in_mid_switch(), 160, 45)
    for fact in ("TTFT", "TPOT", "p95", "boundary", "moved", "predicted dp 12.1 ms, tp 19.3 ms", "700 pages",
                 "rank 0 → 1 48.0 KiB, 1 → 0 48.0 KiB", "18 pages out", "S dcp", "C cp", "24 decode  0 prefill rows",
                 "12 rows", "one column", "24 requests arrive"):  # fmt: skip
        assert fact in text, fact


def test_lines_are_folded_between_words() -> None:
    """Red when a line is too long, a word is broken or lost, or a style moves to another word."""
    text = line_of(("  0.1 s  ", FAINT), ("twelve short words of a reason that goes on and on", STRONG))
    folded = fold(text, 24, indent=9, at_most=9)
    assert [part.plain for part in folded] == [
        "  0.1 s  twelve short",
        "         words of a",
        "         reason that",
        "         goes on and on",
    ]
    assert [span.style for part in folded for span in part.spans if span.style is STRONG] == [STRONG] * 4
    assert [part.plain for part in fold(text, 24, indent=9, at_most=2)][1].endswith("on and on"), "to be cut"
    first, *_ = fold(text, 30, indent=9, first=21, at_most=9)
    assert first.plain == "  0.1 s  twelve short"
    assert [part.plain for part in fold(line_of(("x" * 50, STRONG)), 24, indent=9)] == ["x" * 50]


def test_reasons_are_read_whole_at_80_columns() -> None:
    """Red when the reason of a switch ends in an ellipsis where lines are free, in its panel or among the events."""
    reason = (
        "few long requests are left, 3 running, and their mean context of 12,345 tokens is what counts now"
    )
    state = ViewState()
    for event in Run(last_step=60, switches=((55, "dcp", reason),)).events():
        state.fold(event)
        if isinstance(event, e.TargetChanged):
            break
    text = text_of(state.snapshot(), 80, 24)
    panel, events = (" ".join(part.split()) for part in text[text.index("transitions") :].split("─ events"))
    assert "12,345 tokens is what counts now" in panel.replace("24 flips left ", "")
    assert f"target tp → dcp: {reason}" in events


def test_the_last_switch_stays_with_its_figures() -> None:
    """Red when the outcome vanishes with the transition."""
    *_, view = views(Run(), every=1000)
    for width, height in ((80, 24), (160, 45)):
        text = text_of(view, width, height)
        assert "last   S dcp → T tp  done: 3 requests, 14.2 MiB KV" in text
        assert "all 3 running requests in tp" in text


def test_the_band_tells_the_layouts_without_colour() -> None:
    """Red when the letters of the stack or of the target's changes go, or their order in time."""
    *_, view = views(Run(), every=1000)
    lines = text_of(view, 160, 45).splitlines()
    (target,) = [line.split("│")[2] for line in lines if "target │" in line]
    assert target.replace("━", "").strip() == "TDST"
    bottom = next(line.split("│")[2] for line in lines if " 0 │" in line)
    order = [letter for i, letter in enumerate(bottom) if letter != " " and letter != bottom[i - 1]]
    assert order == ["T", "D", "S", "T"]
    assert "OO" in "".join(lines), "the way from tp to dp leads through dop"


def test_heights_depend_on_the_size_only() -> None:
    """Red when a panel moves up or down while a run goes on."""

    def places(view: Snapshot, size: tuple[int, int]) -> list[int]:
        heads = [line.plain[:24] for line in draw(view, *size)]
        titles = ("ranks", "transitions", "layouts over time", "events")
        return [i for title in titles for i, head in enumerate(heads) if head[1:].startswith(f"─ {title} ")]

    for size in ((80, 24), (160, 45)):
        seen = [places(view, size) for view in views(Run(), every=40)][1:]
        assert len(seen[0]) == 4
        assert all(place == seen[0] for place in seen)


def test_eight_ranks_and_the_last_events_fit_80_by_24() -> None:
    """Red when compact mode drops a rank, or all events, at the usual size of a node."""
    text = text_of(in_mid_switch(ranks=8, requests=48), 80, 24)
    assert all(f"\n{rank:>3}  " in text for rank in range(8))
    assert "── events" in text
    assert "more ranks" not in text
    assert "and 25 more ranks" in text_of(in_mid_switch(ranks=32, requests=48), 80, 24)


def test_before_the_first_event_and_without_requests() -> None:
    """Red when an empty run cannot be drawn."""
    state = ViewState()
    assert "waiting for the engine" in text_of(state.snapshot(), 80, 24)
    state.fold(e.RunStarted(0.0, "m", "cpu", "", 2, "tp", "fixed", 16, 1, 10, 1))
    text = text_of(state.snapshot(), 160, 45)
    assert "N/A" in text
    assert "no switch is open" in text
    assert last_look(ViewState().snapshot(), 80) == []


def test_a_hostile_run_breaks_no_frame() -> None:
    """Red when newlines, escape codes, wide characters, markup or long names get into a line."""
    nasty = "[red]模型模型模型[/red]\n\x1b[31m\t" + "x" * 300
    state = ViewState()
    for event in (
        e.RunStarted(0.0, nasty, nasty, nasty, 2, "tp", nasty, 16, 1, 10, 1),
        e.TargetChanged(0.1, 1, "tp", "tknp", nasty, {"tknp": float("nan")}),
        e.StageStarted(0.1, 1, 1, "tknp", "odd", 0, 1, 10**15, [[0, 10**15]]),
        e.StageCancelled(0.2, 1, 1, "odd", nasty),
        e.TargetRefused(0.2, 1, nasty, nasty),
        e.PoolSampled(0.3, [{"odd": 5, "tknp": 2, "free": 0}], {"odd": 3}, 10**7, 0),
        e.ResidencyChanged(0.3, 1, 0, ["own"] * 99),
        e.StepDone(0.4, 10**9, 1e9, 1e-9, 1, 1, {"odd": 3}, [10**9], 0, 10**9),
        e.RunFinished(0.5, "failed", nasty),
    ):
        state.fold(event)
        for width, height in SIZES:
            for line in draw(state.snapshot(), width, height):
                assert line.cell_len == width
                assert "\x1b" not in line.plain
                assert "\n" not in line.plain


def test_a_strip_is_in_proportion() -> None:
    """Red when a use with few pages disappears, or the strip is not as wide as it must be."""
    text = strip({"free": 900, "tp": 90, "dp": 9, "cached": 1}, 40)
    assert text.plain == "TTTDc" + "·" * 35
    assert strip({}, 12).plain == "─" * 12
    for amounts in ([1, 1, 1], [1000, 1, 1], [0, 5, 0], [3.5, 2.25]):
        for width in range(len(amounts), 40):
            cells = apportion(amounts, width)
            assert sum(cells) == width
            assert all((cell > 0) == (amount > 0) for cell, amount in zip(cells, amounts, strict=True))
    assert apportion([5, 5, 5], 2) == [1, 1, 0] or sum(apportion([5, 5, 5], 2)) == 2


def test_layouts_keep_their_colour_in_all_panels() -> None:
    """Red when a panel colours a layout by anything but the palette."""
    for name, letter in LAYOUT_LETTERS.items():
        spans = arrow(name, name).spans
        assert spans[0].style == spans[-1].style
        assert arrow(name, name).plain.startswith(letter)


@pytest.mark.parametrize("width", [80, 160])
def test_long_requests_apart_are_named(width: int) -> None:
    """Red when `dp → dp` stands where only long requests move, or those that are striped count as not there."""
    state = ViewState()
    for event in Run(last_step=60, switches=((20, "dp", "many"),)).events():
        state.fold(event)
    state.fold(e.TargetChanged(9.0, 60, "dp", "dp", "why", {}, None, 32768))
    assert "D dp → D dp+cp from 32 K" in text_of(state.snapshot(), width, 40)
    state.fold(e.SwitchDone(9.1, 61, "dp", "dp", "why", "done", 1, 1, 0, 0, 0.1, 0.0, None, 32768))
    state.fold(e.PoolSampled(9.1, [{"free": 1}, {"free": 1}], {"dp": 9, "cp": 2}, 0, 0))
    state.fold(e.PolicyAsked(8.0, 59, "tp", "dp", "many", {"dp": 0.01}, None))
    state.fold(e.PolicyAsked(9.0, 60, "dp", "dp", "why", {"dp": 0.01}, None, None, 32768))
    view = state.snapshot()
    assert view.away == 0
    assert "all 11 running requests in dp+cp from 32 K since step 60: why" in text_of(view, width, 40)
    assert "target dp+cp from 32 K |" in status_lines(view)[0]


@pytest.mark.parametrize("model", ["glm-5.3-flash", "a-checkpoint-whose-folder-has-a-very-long-name-indeed"])
@pytest.mark.parametrize("outcome", ["", "interrupted"])
def test_the_title_keeps_the_device(model: str, outcome: str) -> None:
    """Red when at 80 columns nobody can tell on what it runs, that it is simulated, or how it ended."""
    state, note = ViewState(), "simulated: no dcu device here"
    state.fold(e.RunStarted(0.0, model, "8 × bw1000 (gfx936)", note, 8, "tp", "auto", 16, 1, 10, 1))
    if outcome:
        state.fold(e.RunFinished(123.0, outcome, ""))
    title = text_of(state.snapshot(), 80, 24).splitlines()[0]
    assert " on 8 × bw1000 " in title
    assert " simulated" in title
    assert title.rstrip().endswith(outcome or "0.00 s")
    wide = text_of(state.snapshot(), 160, 45).splitlines()[0]
    assert f"{model} on 8 × bw1000 (gfx936), 8 ranks" in wide
    assert note in wide


def test_a_simulation_has_no_boundaries() -> None:
    """Red when zeros that nobody measured stand beside measured times."""
    events = list(Run(last_step=80).events())
    simulated = ViewState()
    for event in events:
        if isinstance(event, e.StepDone):
            event = replace(event, boundary_s=0.0)
        if isinstance(event, e.SwitchDone):
            event = replace(event, max_boundary_s=0.0)
        simulated.fold(event)
    assert "boundary" not in text_of(simulated.snapshot(), 160, 45)
    assert text_of(in_mid_switch(), 160, 45).count("boundary 600 µs") == 1


def test_nobody_is_said_to_be_where_all_are() -> None:
    """Red when an idle deployment shows `all 0 running requests` and an old reason."""
    state = ViewState()
    state.fold(e.RunStarted(0.0, "m", "cpu", "", 2, "tp", "auto", 16, 1, 10, 1))
    state.fold(e.PolicyAsked(0.1, 1, "dp", "tp", "few requests", {"tp": 0.01, "dp": 0.02}, None))
    state.fold(e.PoolSampled(0.2, [{"free": 1}, {"free": 1}], {"tp": 3}, 0, 0))
    assert "all 3 running requests in tp since step 1: few requests" in text_of(state.snapshot(), 160, 45)
    state.fold(e.PoolSampled(0.3, [{"free": 1}, {"free": 1}], {}, 0, 0))
    text = text_of(state.snapshot(), 160, 45)
    assert "no switch is open" in text
    assert "all 0" not in text


def test_one_row_is_no_plural() -> None:
    """Red when a single row is called `1 rows`, in the view or in plain lines."""
    state = ViewState()
    for event in Run(ranks=1, requests=1, switches=()).events():
        state.fold(event)
        if isinstance(event, e.StepDone):
            break
    view = replace(
        state.snapshot(),
        ranks=(RankState(["own"], {"free": 1}, 1),),
        rows_by_layout={"tp": 1},
        prefill_rows=1,
    )
    assert status_lines(view)[0].endswith(", rows 1")
    assert rows_of_step(view).plain.endswith(" 1 prefill row")
    assert any(line.plain.rstrip().endswith(" 1 row") for line in requests(view, 80, 10))


def test_a_dump_of_a_dead_rank_is_no_part_of_a_line() -> None:
    """Red when the line that says how a run ended holds all that its ranks printed last."""
    event = e.RunFinished(
        1.0, "failed", "rank 1 was killed by SIGSEGV\nThe ranks' last output:\n  Fatal Python error"
    )
    state = ViewState()
    state.fold(event)
    state.log.close()
    assert [describe(entry) for entry in state.log.closed_since(0)] == [
        "run failed: rank 1 was killed by SIGSEGV"
    ]
