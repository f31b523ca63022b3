"""`splash run --hw NAME` on a machine without that device: what it says, what it honours, what it refuses."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from splash import cli
from splash.cli import simulated
from splash.cli.hardware import Elsewhere, Here, named_hardware
from splash.cli.pace import Pace
from splash.core import events as e
from splash.core.config import SchedulerConfig
from splash.core.errors import ConfigError, PortError
from splash.engine.trace import read_trace
from splash.hal import registry
from splash.hal.caps import DeviceInfo
from splash.hal.protocol import BackendSpec
from splash.sim.deployment import deploy
from splash.sim.presets import choose
from splash.sim.showcase import MAX_OUTPUT, OVERLOAD, carried_rate, showcase

FEW = ("--hw", "dcu", "--workload", "steady:rate=40,count=30", "--no-tui")


def _run(*arguments: object) -> int:
    return cli._run(["run", *map(str, arguments)])


def _json(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert _run(*arguments, "--json", "-") == 0
    data: dict[str, Any] = json.loads(capsys.readouterr().out)
    return data


# ---- which hardware is meant


def _ports(monkeypatch: pytest.MonkeyPatch, *specs: BackendSpec) -> None:
    monkeypatch.setattr(registry, "_specs", lambda: (list(specs), {}))


def _spec(name: str, aliases: tuple[str, ...] = (), *, devices: int = 1) -> BackendSpec:
    found = [DeviceInfo(number, "a device", 1) for number in range(devices)]
    return BackendSpec(name, aliases, "a port", lambda: None, lambda: found)  # type: ignore[arg-type,return-value]


def test_a_port_with_a_device_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when a device that is here is simulated, or one that is not here is not."""
    _ports(monkeypatch, _spec("chip", ("bw-1000",)), _spec("gone", ("dcu",), devices=0))
    assert named_hardware("bw_1000") == Here("chip")
    assert named_hardware("gone") == Elsewhere("gone", "dcu", "no device found")
    assert named_hardware("DCU").profile == "dcu"  # type: ignore[union-attr]
    assert named_hardware("h200") == Elsewhere("h200", "h200", "")


def test_what_a_port_lacks_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when a driver that cannot be loaded looks like a device that is not there."""

    def broken() -> list[DeviceInfo]:
        raise PortError("the driver is too old")

    _ports(monkeypatch, BackendSpec("chip", ("b200",), "", lambda: None, broken))  # type: ignore[arg-type,return-value]
    found = named_hardware("b200")
    assert isinstance(found, Elsewhere)
    assert found.absence == "no b200 device here (the driver is too old)"
    with pytest.raises(ConfigError, match=r"no chip2 .*|unknown hardware 'chip2' \(did you mean 'chip'\?\)"):
        named_hardware("chip2")


def test_a_profile_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when only the shipped profiles can be simulated."""
    from splash.hw.load import shipped_folder

    text = (shipped_folder() / "b200.toml").read_text()
    monkeypatch.setenv("SPLASH_CONFIG_DIR", str(tmp_path))
    (tmp_path / "mine.toml").write_text(text)
    assert named_hardware("mine") == Elsewhere("mine", "mine", "")
    assert named_hardware(str(tmp_path / "mine.toml")) == Elsewhere("mine", str(tmp_path / "mine.toml"), "")


def test_unknown_hardware_lists_what_there_is(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red when a typing error does not show ports, profiles and the closest name."""
    monkeypatch.setenv("SPLASH_CONFIG_DIR", str(tmp_path))
    assert _run("--hw", "b20") == 2
    error = capsys.readouterr().err
    assert re.match(
        r"splash: unknown hardware 'b20' \(did you mean 'b200'\?\); ports: .*cpu.*; hardware prof", error
    )
    assert "bw1000" in error
    assert f"those in {tmp_path}" in error
    assert "dcu" in error
    assert _run("--hw", "./nothing.toml") == 2
    assert "nothing.toml" in capsys.readouterr().err


# ---- what it says


def test_the_first_line_says_that_it_is_a_simulation(capsys: pytest.CaptureFixture[str]) -> None:
    """Red when somebody could take the figures for those of a device."""
    assert _run(*FEW) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0] == "no dcu device here: simulating glm-5.3-flash on 8 × bw1000 (gfx936)"
    assert "simulated: no dcu device here" in out
    for text in ("30 requests", "throughput", "TTFT", "30 length", "run done"):
        assert text in out, text


def test_a_device_can_be_required(capsys: pytest.CaptureFixture[str]) -> None:
    """Red when --require-device simulates all the same, or refuses what is here."""
    assert _run(*FEW, "--require-device") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == ("splash: no dcu device here; without --require-device it would be simulated\n")


def test_json_has_the_shape_of_a_run_and_says_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Red when a key goes missing, or a simulation can be taken for a run."""
    data = _json(capsys, *FEW)
    assert data["simulated"] is True
    assert data["deployment"].items() >= {
        "model": "glm-5.3-flash", "hardware": "bw1000", "ranks": 8, "weights": "int8", "memory_fraction": 0.85,
    }.items()  # fmt: skip
    assert data["workload"]["requests"] == len(data["requests"]) == data["summary"]["requests"] == 30
    assert data.keys() >= {"requests", "switches", "refused", "switch_cost", "summary", "decisions"}
    assert data["summary"]["finish_reasons"] == {"length": 30}
    assert data["summary"]["output_tokens"] == data["workload"]["output_tokens"]


def test_a_seed_repeats(capsys: pytest.CaptureFixture[str]) -> None:
    """Red when a simulated run depends on anything but its options."""
    first, again, other = (_json(capsys, *FEW, "--seed", seed) for seed in (1, 1, 2))
    assert first == again
    assert first["summary"] != other["summary"]


# ---- what it honours


def test_options_that_make_sense_are_honoured(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Red when an option that a simulation understands is taken and forgotten."""
    trace = tmp_path / "run.jsonl"
    given = ("--hw", "h200", "--model", "glm-4.7-flash", "--ranks", 4, "--layout", "dop", "--max-tokens", 24)
    more = (
        "--switch",
        "9:dp",
        "--switch",
        "20:dcp",
        "--kv-dtype",
        "fp8",
        "--memory-fraction",
        0.7,
        "--trace",
        trace,
    )
    few = ("--workload", "steady:rate=400,count=12", "--max-running", 8, "--no-tui")
    data = _json(capsys, *given, *more, *few)
    assert data["deployment"].items() >= {
        "model": "glm-4.7-flash", "ranks": 4, "kv": "fp8", "memory_fraction": 0.7, "max_running": 8,
    }.items()  # fmt: skip
    assert [(s["from"], s["to"]) for s in data["switches"]] == [("dop", "dp"), ("dp", "dcp")]
    assert data["summary"]["output_tokens"] <= 12 * 24
    events = list(read_trace(trace))
    changed = [event for event in events if isinstance(event, e.TargetChanged)]
    assert [(event.step, event.new) for event in changed] == [(9, "dp"), (20, "dcp")]
    rows = [event.decode_rows for event in events if isinstance(event, e.StepDone)]
    assert 0 < max(rows) <= 8
    assert cli._run(["replay", str(trace), "--speed", "0", "--no-tui"]) == 0
    assert "simulated: no h200 device here" in capsys.readouterr().out


def test_a_switch_that_never_comes_due_is_none(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Red when a switch that is asked for behind the last step is listed as made, or nothing says that it was not."""
    load, out = tmp_path / "load.csv", tmp_path / "out.json"
    load.write_text("arrival_s,prompt_tokens,output_tokens\n0,100,8\n")
    given = ("--hw", "h200", "--layout", "tp", "--workload", load, "--no-tui", "--json", out)
    assert _run(*given) == 0
    last = json.loads(out.read_text())["summary"]["steps"] - 1
    for late in (last + 1, last + 50):
        capsys.readouterr()
        assert _run(*given, "--switch", f"{last}:dp", "--switch", f"{late}:cp") == 0
        data = json.loads(out.read_text())
        assert [(s["to"], s["started_step"]) for s in data["switches"]] == [("dp", last)]
        told = capsys.readouterr().out
        assert f"--switch {late}:cp never came due: the run had 8 steps, the last of them step {last}" in told
        assert "→ cp" not in told[told.index("Switches") :]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--prompt", "hello"), "--prompt"),
        (("--verify",), "--verify"),
        (("--temperature", "0.5"), "--temperature"),
        (("--top-k", "4"), "--top-k"),
        (("--kv-pages", "100"), "--kv-pages"),
        (("--pool-mib", "100"), "--pool-mib"),
    ],
)
def test_what_no_simulation_can_do_is_refused(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...], named: str
) -> None:
    """Red when an option is ignored in silence, or refused for a reason that is not true of it."""
    assert _run("--hw", "dcu", *options) == 2
    error = capsys.readouterr().err
    assert f"{named} needs a device" in error
    assert ("--memory-fraction" in error) is (named in ("--kv-pages", "--pool-mib"))
    assert ("computes no token" in error) is (named not in ("--kv-pages", "--pool-mib"))


@pytest.mark.parametrize("options", [("--speed", "3"), ("--request-tokens", "9"), ("--dtype", "int8")])
def test_what_no_device_understands_is_refused(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    """Red when a run on a device ignores an option of simulations."""
    assert _run(*options) == 2
    assert f"{options[0]} " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--model", "glm-5.4"), "unknown model 'glm-5.4'"),
        (("--workload", "stedy"), "did you mean 'steady'?"),
        (
            ("--workload", "long"),
            "is of texts for ranks that compute, and dcu is simulated here; known: default, rl",
        ),
        (("--ranks", "many"), "'many' is not a valid integer"),
        (("--memory-fraction", "half"), "'half' is not a valid number"),
        (("--layout", "oracle"), "unknown layout 'oracle'"),
        (("--ranks", "3"), "3"),
        (("--policy", "thresholds"), "a simulation decides by predicted times"),
        (("--speed", "nan"), "nan is not a finite number"),
        (("--ttft", "1"), "--ttft and --tpot are the targets of --objective goodput"),
        (("--hw", "h200", "--model", "llama-3.1-405b", "--dtype", "float32"), "does not fit"),
    ],
)
def test_bad_input_is_one_line(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...], said: str
) -> None:
    """Red when a bad option starts a run, or its error does not say what is known."""
    assert _run("--hw", "dcu", *options) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1


def test_ctrl_c_ends_with_the_table_so_far(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Red when an interrupted simulation loses its figures, goes on, or exits with 0."""

    class Impatient(simulated.Watching):
        def sink(self, event: e.Event) -> None:
            super().sink(event)
            if isinstance(event, e.StepDone) and event.step == 30:
                raise KeyboardInterrupt

    monkeypatch.setattr(simulated, "Watching", Impatient)
    out = tmp_path / "out.json"
    assert _run(*FEW, "--json", out) == 130
    data = json.loads(out.read_text())
    assert data["summary"]["outcome"] == "interrupted"
    assert data["summary"]["steps"] == 31
    shown = capsys.readouterr()
    assert "run interrupted" in shown.out
    assert "Run, interrupted: what was served until then" in shown.out
    assert "throughput" in shown.out
    assert shown.err.split("\n")[-2:] == ["splash: interrupted", ""]


def test_a_reader_that_goes_away_ends_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Red when `splash run --hw dcu | head` goes on, or loses the figures of what was simulated."""
    lines: list[object] = []

    def write(*line: object) -> None:
        lines.append(line)
        if len(lines) == 4:
            raise BrokenPipeError

    monkeypatch.setattr("splash.tui.plain.PlainLines._write", write)
    monkeypatch.setattr(sys, "stdout", sys.stdout)  # given back afterwards
    out = tmp_path / "out.json"
    assert _run(*FEW, "--json", out) == 1
    assert json.loads(out.read_text())["summary"]["outcome"] == "interrupted"


# ---- pace and load


def test_speed_is_a_pace(capsys: pytest.CaptureFixture[str]) -> None:
    """Red when --speed does not slow a simulation down to what it says."""
    begin = time.monotonic()
    data = _json(capsys, *FEW, "--max-tokens", 8, "--speed", 1.5)
    assert time.monotonic() - begin >= data["summary"]["duration_s"] / 1.5


def test_what_is_late_makes_nothing_else_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when a view rushes to make up for a step that took long to compute."""
    now, slept = [100.0], list[float]()

    def sleep(seconds: float) -> None:
        slept.append(round(seconds, 6))
        now[0] += seconds

    monkeypatch.setattr("splash.cli.pace.time.monotonic", lambda: now[0])
    monkeypatch.setattr("splash.cli.pace.time.sleep", sleep)
    pace = Pace(2.0)
    pace.wait(1.0)
    now[0] += 3.0  # something took three seconds
    pace.wait(2.0)
    pace.wait(3.0)
    assert slept == [0.5, 0.5]


@pytest.mark.parametrize("hw", ["dcu", "b200", "h200"])
def test_the_default_load_overloads_what_it_is_shown_on(hw: str) -> None:
    """Red when the rate of one deployment is shown on another, or its requests take for ever."""
    choice = choose(None, hw)
    deployment = deploy(choice.model.name, choice.model.spec, choice.profile, choice.settings)
    workload = showcase(deployment, seed=0)
    chats = [x for x in workload.arrivals if x.time_s < 30]
    assert len(chats) / 30 == pytest.approx(OVERLOAD * carried_rate(deployment), rel=0.2)
    assert max(x.output_tokens for x in workload.arrivals) == MAX_OUTPUT
    assert workload.arrivals[-1].group is not None
    assert showcase(deployment, seed=0) == workload != showcase(deployment, seed=1)


def test_default_is_the_name_of_what_is_served_without_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Red when a name that help lists is unknown on simulated hardware."""
    few = ("--hw", "dcu", "--max-tokens", 2, "--no-tui")
    unnamed, named = _json(capsys, *few), _json(capsys, *few, "--workload", "default")
    assert named["workload"] == unnamed["workload"]
    assert named["workload"]["name"] == "phase-shift"


def test_help_names_the_options() -> None:
    """Red when what a simulation understands cannot be found."""
    text = CliRunner().invoke(cli.cli, ["run", "--help"]).output
    for option in ("--require-device", "--speed", "--memory-fraction", "--hw"):
        assert option in text


def test_help_says_both_defaults_where_they_differ() -> None:
    """Red when help tells of a simulation what is true of a device here only."""
    usage = " ".join(CliRunner().invoke(cli.cli, ["run", "--help"], terminal_width=200).output.split())
    choice = choose("glm-5.3", None)
    there = deploy("glm-5.3", choice.model.spec, choice.profile, choice.settings).config
    here = SchedulerConfig()
    for name in ("token_budget", "max_running", "copy_share"):
        about = usage[usage.index(f"--{name.replace('_', '-')} ") :]
        both = f"[default: {getattr(here, name)}; simulated: {getattr(there, name)}]"
        assert both in about[: about.index(" --")], name
