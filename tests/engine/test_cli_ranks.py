"""`splash run` as a user starts it, on MPI ranks: it ends cleanly however it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.conftest import TinyMaker

pytestmark = pytest.mark.ranks

SPLASH = (sys.executable, "-c", "from splash.cli import main; main()")
PATIENCE_S = 120.0


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


def _run(
    *arguments: object,
    disturb: Callable[[psutil.Process], None] | None = None,
    deaf: bool = False,
    serving: str = "serve",
) -> Ended:
    """Runs a command, disturbs it once its ranks serve, and sees that none of its processes is left. `deaf`: reads no
    more of it than the line that says that they serve."""
    command = [*SPLASH, *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    root, seen = psutil.Process(process.pid), set[psutil.Process]()
    try:
        if disturb is not None:
            assert process.stdout is not None
            line = next((line for line in process.stdout if serving in line), None)
            assert line is not None, process.communicate(timeout=PATIENCE_S)
            time.sleep(0.5)
            seen |= set(root.children(recursive=True))
            assert len(_ranks(root)) == 2
            disturb(root)
            if deaf:
                process.stdout.close()
        out, err = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    _, alive = psutil.wait_procs(seen, timeout=5)
    assert not alive
    return Ended(process.returncode, out, err)


def _ranks(root: psutil.Process) -> list[psutil.Process]:
    return [
        p
        for p in root.children(recursive=True)
        if p.cmdline()[1:] and "mpiexec" not in p.name() and "splash_cpu.rank" in p.cmdline()
    ]


@pytest.fixture
def endless(tiny: TinyMaker) -> list[object]:
    """Arguments of a run that does not end by itself in time."""
    prompts: list[object] = []
    for number in range(4):
        prompts += ["--prompt", f"{5 + number} 6 7"]
    return ["run", "--model", tiny("deepseek_v3"), *prompts, "--max-tokens", 4000, "--ignore-eos", "--no-tui"]


def test_a_run_serves_switches_and_verifies(tiny: TinyMaker) -> None:
    """Red when the command does not work outside the tests' own process."""
    ended = _run(
        "run", "--model", tiny("deepseek_v3"), "--prompt", "5 6 7", "--max-tokens", 24, "--ignore-eos",
        "--switch", "4:dp", "--switch", "14:dcp", "--verify", "--json", "-",
    )  # fmt: skip
    assert ended.code == 0, ended.err
    data = json.loads(ended.out)
    assert len(data["requests"][0]["token_ids"]) == 24
    assert [s["to"] for s in data["switches"]] == ["dp", "dcp"]
    assert data["verify"]["tokens"] == 24
    assert "verify: 24 tokens compared" in ended.err


def test_ctrl_c(endless: list[object], tmp_path: Path) -> None:
    """Red when Ctrl-C leaves a rank, a traceback, or no figures."""
    out = tmp_path / "out.json"
    ended = _run(*endless, "--json", out, disturb=lambda root: os.kill(root.pid, signal.SIGINT))
    assert ended.code == 130
    assert "Traceback" not in ended.err
    data = json.loads(out.read_text())
    assert {r["finish_reason"] for r in data["requests"]} == {"abort"}
    assert data["summary"]["outcome"] == "interrupted"


def test_a_reader_that_goes_away(endless: list[object], tmp_path: Path) -> None:
    """Red when `splash run | head -1` goes on to its end, or leaves a rank, a traceback, or no figures."""
    out = tmp_path / "out.json"
    ended = _run(*endless, "--json", out, disturb=lambda root: None, deaf=True)
    assert (ended.code, ended.err) == (1, "")
    data = json.loads(out.read_text())
    assert {r["finish_reason"] for r in data["requests"]} == {"abort"}
    assert data["summary"]["outcome"] == "interrupted"


def test_a_traces_reader_that_goes_away(endless: list[object], tmp_path: Path) -> None:
    """Red when `splash run --trace - | head -1` is told as a failure, goes on to its end, or leaves no figures."""
    out = tmp_path / "out.json"
    ended = _run(
        *endless, "--json", out, "--trace", "-", disturb=lambda root: None, deaf=True, serving='"step"'
    )
    assert ended.code == 1
    assert "run interrupted" in ended.err
    assert not [word for word in ("failed", "pipe", "Traceback", "splash:") if word in ended.err]
    data = json.loads(out.read_text())
    assert {r["finish_reason"] for r in data["requests"]} == {"abort"}
    assert data["summary"]["outcome"] == "interrupted"


def test_termination(endless: list[object]) -> None:
    """Red when a service manager's signal leaves ranks behind."""
    ended = _run(*endless, disturb=lambda root: os.kill(root.pid, signal.SIGTERM))
    assert ended.code == 128 + signal.SIGTERM
    assert "Traceback" not in ended.err


def test_a_killed_rank(endless: list[object], tmp_path: Path) -> None:
    """Red when a dead rank hangs the run, is not named, or takes the figures with it."""
    out = tmp_path / "out.json"
    ended = _run(*endless, "--json", out, disturb=lambda root: _ranks(root)[1].kill())
    assert ended.code == 3
    assert ended.err.startswith("splash: rank ")
    assert "Traceback" not in ended.err
    assert ended.err.count("\n") == 1
    data = json.loads(out.read_text())
    assert data["summary"]["outcome"] == "failed"
    assert all(request["token_ids"] for request in data["requests"])
    assert "Run, failed: what was served until then" in ended.out


def test_help_answers_at_once() -> None:
    """Red when `splash --help` imports what it does not need (0.3 s on an idle machine; here only what is loaded)."""
    code = "from splash.cli import _run; _run(['--help']); import sys; print(*sys.modules, file=sys.stderr)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr
    assert not {"torch", "numpy", "rich", "tokenizers", "safetensors"} & set(loaded.split())
