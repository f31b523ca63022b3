"""What a simulation leaves behind: tables that fit a terminal, and a report."""

from __future__ import annotations

import json
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from splash import cli
from splash.cli.sim_report import report_page
from splash.cli.sim_table import MAX_SWITCHES, show_results
from splash.core.errors import ConfigError
from splash.sim.generators import GENERATORS
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
    assert "each lets all requests end, then stops for 45 s" not in text
    assert "3.0 GiB" in text
    assert "12.1 ms against 14.9 ms" in text
    assert "superseded" in text


def test_what_a_switch_costs_is_said_of_every_kind() -> None:
    """Red when a restart or a free switch is listed as if it had been made live."""
    text = " ".join(_shown([run("restart")]).split())
    assert (
        "Switches of restart: 1 done, 1 superseded; each lets all requests end, then stops for 45 s" in text
    )
    text = " ".join(_shown([run("oracle")]).split())
    assert "2, free" in text
    assert "takes no time and moves nothing" in text
    assert "took" not in text


def test_the_tables_are_tables_at_eighty_columns() -> None:
    """Red when a line of a run takes several in a usual terminal, or columns that say nothing take its room."""
    idle = [
        replace(run(name, switches=0), preemptions=0, goodput_requests_per_s=None)
        for name in ("tp", "dp", "auto")
    ]
    lines = _shown(idle, width=80).splitlines()
    assert "goodput/s" not in lines[2]
    assert "preempted" not in lines[2]
    names = [line.split()[0] for line in lines[4:7]]
    assert names == ["tp", "dp", "auto"]


def test_reasons_stand_below_where_there_is_no_room_beside() -> None:
    """Red when a reason takes a line for every two words of it."""
    why = " ".join(["because"] * 18)
    result = run(switches=3)
    result = replace(result, switches=tuple(replace(switch, reason=why) for switch in result.switches))
    for width, most in ((80, 3), (120, 3)):
        lines = _shown([result], width=width).splitlines()
        assert max(map(len, lines)) <= width
        assert sum("because" in line for line in lines) <= 3 * most


def test_refused_requests_are_shown_with_the_layouts_that_refuse_them() -> None:
    """Red when figures leave requests out in silence."""
    refused = ("a.csv:3: too long", "a.csv:9: too long")
    one, other = replace(run("tp"), refused=refused), run("cp")
    assert "2 requests refused in tp: a.csv:3: too long; and 1 more" in _shown([one, other])
    assert "2 requests refused: a.csv:3" in _shown([one, replace(other, refused=refused)])
    assert "refused" not in _shown([other])


def _sim(*arguments: str) -> int:
    return cli._run(["sim", "--workload", "steady:rate=40,count=6", *arguments])


def test_a_file_on_standard_output_is_there_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """Red when `-` is a file's name, or the tables get into the file."""
    pytest.importorskip("plotly", reason="the report extra")
    assert _sim("--layout", "tp", "--trace", "-") == 0
    captured = capsys.readouterr()
    kinds = [json.loads(line)["kind"] for line in captured.out.splitlines()]
    assert kinds[0] == "header"
    assert set(kinds[1:]) == {"event"}
    assert "tokens/s" in captured.err
    assert _sim("--layout", "tp,dp", "--report", "-") == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("<!doctype html>")
    assert captured.out.endswith("</html>\n")
    assert "tokens/s" in captured.err
    assert _sim("--layout", "tp", "--trace", "-", "--json", "-") == 2
    assert "--json and --trace cannot both" in capsys.readouterr().err


@pytest.mark.parametrize("layout", ["tp", "oracle"])
def test_a_trace_of_a_simulation_is_replayed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, layout: str
) -> None:
    """Red when the trace lacks its end, and replay takes it for one that was cut short."""
    trace = tmp_path / "sim.jsonl"
    assert _sim("--layout", layout, "--trace", str(trace)) == 0
    assert cli._run(["replay", str(trace), "--speed", "0", "--no-tui"]) == 0
    shown = capsys.readouterr()
    assert "run done" in shown.out
    assert not shown.err


def test_a_report_that_cannot_be_written_is_said_before_the_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Red when an hour's charts are lost to a typing error."""
    pytest.importorskip("plotly", reason="the report extra")
    assert _sim("--report", str(tmp_path / "no" / "folder.html")) == 2
    captured = capsys.readouterr()
    assert "cannot write" in captured.err
    assert "--report" in captured.err
    assert "tokens/s" not in captured.out


def test_ctrl_c_keeps_what_was_finished(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Red when an interrupt in the last of eight runs loses the seven before it."""
    from splash.sim import modes

    honest = modes.simulate

    def impatient(*arguments: Any, **options: Any) -> RunResult:
        if arguments[2] == "cp":
            raise KeyboardInterrupt
        return honest(*arguments, **options)

    monkeypatch.setattr(modes, "simulate", impatient)
    out = tmp_path / "out.json"
    assert _sim("--layout", "tp,dp,cp,dop", "--json", str(out)) == 130
    assert [run["layout"] for run in json.loads(out.read_text())["runs"]] == ["tp", "dp"]
    shown = capsys.readouterr().out
    assert "tokens/s" in shown
    assert "interrupted: 2 of 4 runs came to their end" in shown
    assert _sim("--layout", "cp,dp", "--json", str(tmp_path / "none.json")) == 130
    assert not (tmp_path / "none.json").exists()


def test_a_load_that_nothing_can_serve_fails(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Red when a table of nothing looks like a success, or the error does not say where."""
    file = tmp_path / "trace.csv"
    file.write_text("arrival_s,prompt_tokens,output_tokens\n0,90000000,4\n")
    assert cli._run(["sim", "--workload", str(file), "--layout", "tp,dp"]) == 2
    error = capsys.readouterr().err
    assert "no request can be served: trace.csv:2: the prompt has 90000000 tokens" in error
    assert "--max-model-len" not in error


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


def test_the_help_lists_what_a_workload_can_be_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Red when a parameter of a workload is found in the source only, or an option far from it is proposed instead."""
    with pytest.raises(SystemExit):
        cli.main(["sim", "--help"])
    words = capsys.readouterr().out.replace(",", " ").split()
    for kind in GENERATORS.values():
        assert {f"{field.name}={field.default}" for field in fields(kind)} <= set(words)
    with pytest.raises(SystemExit):
        cli.main(["sim", "--duration", "20"])
    error = capsys.readouterr().err
    assert "--workload burst:duration_s=600" in error
    assert "--rate" not in error
