"""The tables at the end of a run."""

from __future__ import annotations

from dataclasses import replace

from rich.console import Console

from splash.cli.summary import show_report
from splash.core.events import Event, RequestArrived, RequestFinished, RunFinished, SwitchDone, TargetRefused
from splash.engine.report import RunReport


def _shown(*events: Event, width: int = 100) -> str:
    report = RunReport()
    for event in events:
        report.event(event)
    return _table(report, width=width)


def _table(report: RunReport, *, width: int = 100) -> str:
    console = Console(width=width, force_terminal=False, highlight=False)
    with console.capture() as capture:
        show_report(console, report)
    return capture.get()


def _line(text: str, word: str) -> str:
    return next(line for line in text.splitlines() if word in line)


def test_a_switch_is_told_from_its_first_step() -> None:
    """Red when the table has another step than the JSON calls the first."""
    done = SwitchDone(4.0, 1209, "tp", "dp", "many", "done", 9, 1002, 4096, 1024, 0.5, 0.002)
    text = _shown(done, TargetRefused(4.5, 2000, "cp", "too big"))
    assert "at step" in text
    assert _line(text, "tp → dp").split()[:5] == ["1,200", "tp", "→", "dp", "1,002"]
    assert _line(text, "→ cp").split()[0] == "2,000"


def test_a_target_has_its_whole_name() -> None:
    """Red when a switch of the long requests alone reads `dp → dp`."""
    apart = SwitchDone(4.0, 9, "dp", "dp", "why", "done", 5, 2, 4096, 0, 0.5, 0.002, None, 8192)
    together = SwitchDone(5.0, 19, "dp", "tp", "why", "done", 5, 2, 4096, 0, 0.5, 0.002, 8192, None)
    text = _shown(apart, together)
    assert "dp → dp+cp from 8 K " in text
    assert "dp+cp from 8 K → tp " in text


def test_thousands_stand_apart() -> None:
    """Red when a number of five digits is hard to read."""
    text = _shown(
        RequestArrived(0.0, 0, 38683, 9),
        RequestFinished(2.0, 0, "length", 26435, 0.1, 0.01),
        RunFinished(2.0, "done", ""),
    )
    assert "26,435 output, 38,683 prompt" in text
    assert "13,217.5 output tokens/s" in text


def test_who_never_arrived_is_named() -> None:
    """Red when the table counts requests that were not due yet among those aborted, or says so where all came."""
    report = RunReport()
    report.event(RequestArrived(0.0, 0, 10, 3))
    report.event(RequestFinished(2.0, 0, "abort", 1, 0.5, None))
    assert "never arrived" not in _table(report)
    report.output(1, (), "", "abort")
    assert "1 (1 abort), 1 more never arrived" in _line(_table(report), "requests")


def test_a_simulation_has_no_stalls() -> None:
    """Red when a column of zeros looks like a measurement."""
    done = SwitchDone(4.0, 9, "tp", "dp", "many", "done", 5, 2, 4096, 1024, 0.5, 0.002)
    assert "stall" in _shown(done)
    assert "stall" not in _shown(replace(done, max_boundary_s=0.0))


def test_what_ended_early_says_so() -> None:
    """Red when the table of an interrupted run looks like that of a whole one."""
    assert _shown(RunFinished(2.0, "done", "")).splitlines()[0].strip() == "Run"
    assert "Run, interrupted: what was served until then" in " ".join(
        _shown(RunFinished(2.0, "interrupted", "")).split()
    )
    assert "Run, up to here" in _shown()
