"""What a simulation leaves behind: tables that fit a terminal, and a report."""

from __future__ import annotations

import sys

import pytest
from rich.console import Console

from splash.cli.sim_report import report_page
from splash.cli.sim_table import MAX_SWITCHES, show_results
from splash.core.errors import ConfigError
from splash.sim.result import RunResult
from tests.sim.results_made import run

LAYOUTS = ("tp", "dp", "cp", "dop", "dcp", "auto", "oracle", "restart")


def _shown(runs: list[RunResult], width: int = 100) -> str:
    console = Console(width=width, record=True, file=None, force_terminal=False)
    with console.capture() as capture:
        show_results(console, runs)
    return capture.get()


def test_the_tables_fit_a_hundred_columns() -> None:
    """Red when a row is wider than the terminal, or a figure is cut off."""
    text = _shown([run(name, slower=500) for name in LAYOUTS])
    assert max(map(len, text.splitlines())) <= 100
    assert "…" not in text


def test_the_tables_have_every_figure() -> None:
    """Red when a figure of a run is not shown, or under another name."""
    result = run()
    text = _shown([result, run("restart", slower=2, switches=0)])
    for latency in ("TTFT", "TPOT", "ITL", "E2E"):
        assert latency in text
    assert "1.000" in text
    assert f"{result.goodput_requests_per_s:.3g}" in text
    assert "dop 60%, tp 40%" in text or "tp 40%, dop 60%" in text
    assert "2 in 1.00 s" in text
    assert "3.0 GiB" in text
    assert "12.1 ms against 14.9 ms" in text
    assert "superseded" in text


def test_switches_are_listed_up_to_a_limit() -> None:
    """Red when a policy that flaps floods the terminal, or the rest is not mentioned."""
    text = _shown([run(switches=MAX_SWITCHES + 3)])
    assert text.count("→") == MAX_SWITCHES
    assert "3 more; --json has all" in text


def test_a_report_has_plotly_in_it() -> None:
    """Red when the page cannot draw without a network."""
    pytest.importorskip("plotly", reason="the report extra")
    text = report_page([run("tp"), run()], title="t", note="n")
    assert text.endswith("</html>\n")
    assert "Plotly.newPlot" in text
    assert len(text) > 1_000_000, "plotly itself"


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when a user without plotly gets a traceback instead of what to install."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "plotly"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(ConfigError, match=r"pip install plotly"):
        report_page([run()], title="t", note="n")
