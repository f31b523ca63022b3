"""`splash run` on in-process ranks: what it prints, what the JSON holds, and one line for each bad input."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from splash import cli
from splash.hal.inproc import InProcessBackend
from tests.conftest import TinyMaker

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _threads_as_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("splash.engine.deployment._backend", lambda name: InProcessBackend())


def _run(*arguments: object) -> int:
    """The exit code of a command; nothing of it runs on afterwards."""
    threads = threading.active_count()
    code = cli._run([str(argument) for argument in arguments])
    assert threading.active_count() == threads
    return code


def _json(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert _run("run", *arguments, "--json", "-") == 0
    data: dict[str, Any] = json.loads(capsys.readouterr().out)
    return data


@pytest.fixture
def model(tiny: TinyMaker) -> Path:
    return tiny("deepseek_v3")


def test_json_alone_on_stdout(capsys: pytest.CaptureFixture[str], model: Path) -> None:
    """Red when a key of the JSON goes missing, or anything else is printed there."""
    data = _json(
        capsys, "--model", model, "--prompt", "5 6 7", "--prompt", "9,10", "--max-tokens", 20, "--layout", "tp",
        "--switch", "3:dp", "--switch", "10:dcp", "--ignore-eos",
    )  # fmt: skip
    first, second = data["requests"]
    assert first.keys() >= {"token_ids", "text", "finish_reason", "ttft_s", "tpot_s"}
    assert len(first["token_ids"]) == len(second["token_ids"]) == 20
    assert first["finish_reason"] == "length"
    assert first["ttft_s"] > 0 < first["tpot_s"]
    assert [(s["from"], s["to"]) for s in data["switches"]] == [("tp", "dp"), ("dp", "dcp")]
    for switch in data["switches"]:
        assert switch.keys() >= {"from", "to", "reason", "steps", "requests", "bytes_received"}
    cost = data["switch_cost"]
    assert cost["flips"] >= 2
    assert cost["step_s_p50"] > 0
    assert set(cost["flip_s"]) == set(cost["null_s"]) == {"p50", "p95"}
    assert data["summary"]["output_tokens_per_s"] > 0


def test_plain_lines_and_a_table(capsys: pytest.CaptureFixture[str], model: Path) -> None:
    """Red when a run without a terminal says less than the view."""
    given = ("--prompt", "5 6", "--max-tokens", 12, "--switch", "4:dop", "--ignore-eos")
    assert _run("run", "--model", model, *given) == 0
    out = capsys.readouterr().out
    for text in ("serve", "target tp → dop", "throughput", "TTFT", "TPOT", "Switches", "--switch 4:dop"):
        assert text in out, text
    assert "\x1b" not in out


def test_verify_agrees(capsys: pytest.CaptureFixture[str], model: Path) -> None:
    """Red when verification does not run, or reports what is no difference."""
    data = _json(
        capsys, "--model", model, "--workload", "burst", "--max-tokens", 6, "--verify", "--switch", "4:dp"
    )
    assert data["verify"]["tokens"] == data["summary"]["output_tokens"] == 48 * 6
    assert data["verify"]["differences"] == []


def test_verify_fails_at_a_difference(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, model: Path
) -> None:
    """Red when a served token that is not the best one passes, or is not named."""
    from splash.cli import run

    honest = run._serve

    def lying(*arguments: Any, **options: Any) -> Any:
        outcome = honest(*arguments, **options)
        outcome.completions[0].token_ids[3] ^= 1
        return outcome

    monkeypatch.setattr(run, "_serve", lying)
    given = ("--prompt", "5 6 7", "--max-tokens", 6, "--ignore-eos", "--verify")
    assert _run("run", "--model", model, *given) == 1
    assert re.search(
        r"DIFFERENCE: request 0, output token 3: served \d+, in tp \d+, logit gap", capsys.readouterr().out
    )


def test_a_trace_is_replayed(capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path) -> None:
    """Red when a replay shows something else than the run did."""
    trace = tmp_path / "run.trace"
    given = ("--prompt", "5 6", "--max-tokens", 8, "--switch", "3:dp")
    assert _run("run", "--model", model, *given, "--trace", trace) == 0
    told = capsys.readouterr().out
    assert _run("replay", trace, "--speed", 0) == 0
    again = capsys.readouterr().out
    assert again.splitlines()[:3] == told.splitlines()[:3]
    assert told[told.index("Run") :] == again[again.index("Run") :]


def test_a_workload_file(capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path) -> None:
    """Red when a file's requests are not served as they say."""
    file = tmp_path / "load.jsonl"
    file.write_text(
        '{"token_ids": [5, 6], "max_tokens": 3, "ignore_eos": true}\n'
        '{"token_ids": [7], "max_tokens": 9, "arrival_step": 4, "temperature": 1, "seed": 3, "ignore_eos": true}\n'
    )
    data = _json(capsys, "--model", model, "--workload", file, "--max-tokens", 5)
    assert [len(r["token_ids"]) for r in data["requests"]] == [3, 5]


def _broken(model: Path, folder: Path) -> dict[str, Path]:
    """Checkpoints that cannot be served."""
    made = {}
    for name in ("truncated", "foreign", "unknown"):
        copy = folder / name
        copy.mkdir()
        for file in model.iterdir():
            (copy / file.name).write_bytes(file.read_bytes())
        made[name] = copy
    weights = made["truncated"] / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    (made["foreign"] / "config.json").unlink()
    config = json.loads((model / "config.json").read_text())
    (made["unknown"] / "config.json").write_text(json.dumps({**config, "model_type": "mamba"}))
    return made


def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path) -> None:
    """Red when bad input gives a traceback, more than a line, or no hint how to put it right."""
    broken = _broken(model, tmp_path)
    bad_file = tmp_path / "bad.jsonl"
    bad_file.write_text('{"token_ids": [1]}\n{"promt": "x"}\n')
    for arguments, complaint in [
        (("--model", tmp_path / "missing"), "does not exist"),
        (("--model", bad_file), "is a file"),
        (("--model", broken["foreign"]), "has no config.json"),
        (("--model", broken["unknown"]), "model type 'mamba' is not supported; supported: deepseek_v3"),
        (("--model", broken["truncated"]), "model.safetensors"),
        (("--ranks", 3), "cannot be divided over 3 ranks; choose --ranks from 1, 2, 4, 8"),
        (("--ranks", 0), "--ranks"),
        (("--layout", "pd"), "unknown layout 'pd'; known: tp, dp, cp, dop, dcp"),
        (("--switch", "5"), "'5' is not STEP:LAYOUT"),
        (("--switch", "5:pd"), "unknown layout 'pd'"),
        (("--switch", "-5:dp"), "is not STEP:LAYOUT"),
        (("--prompt", "1 " * 5000), "the prompt has 5000 tokens, the limit of prompt and output together is 4096"),
        (("--prompt", "9999"), "token id 9999 is outside the vocabulary of 512"),
        (("--prompt", "hello"), "has no tokenizer.json"),
        (("--prompt", ""), "has no tokenizer.json"),
        (("--prompt", "1", "--kv-pages", 1, "--max-tokens", 4000), "raise --kv-pages or --pool-mib"),
        (("--prompt", "1", "--workload", "burst"), "exclude each other"),
        (("--kv-pages", 4, "--pool-mib", 4), "exclude each other"),
        (("--workload", "brust"), "unknown workload 'brust'"),
        (("--workload", bad_file), f"{bad_file}:2: unknown key 'promt'"),
        (("--temperature", "nan"), "temperature is nan"),
        (("--top-p", 0), "top_p is 0.0"),
        (("--verify", "--temperature", 1), "--verify compares greedy tokens"),
        (("--json", tmp_path / "no" / "folder.json"), "(--json)"),
        (("--trace", tmp_path / "no" / "folder.trace"), "(--trace)"),
        (("--frobnicate",), "No such option"),
        (("--copy-share", 2), "copy_share is 2.0"),
    ]:  # fmt: skip
        given = arguments if "--model" in arguments else ("--model", model, *arguments)
        assert _run("run", *given) == 2, arguments
        captured = capsys.readouterr()
        assert captured.err.count("\n") == 1, captured.err
        assert captured.err.startswith("splash: ")
        assert complaint in captured.err
        assert not captured.out
    assert _run("rnu") == 2
    assert "No such command 'rnu'" in capsys.readouterr().err
    assert _run("replay", tmp_path / "missing.trace") == 2
    assert "cannot read the trace" in capsys.readouterr().err


def test_ctrl_c_ends_with_what_there_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, model: Path, tmp_path: Path
) -> None:
    """Red when an interrupted run loses its figures, goes on, or exits with 0."""
    from splash.engine.client import Engine

    def interrupted(engine: Engine) -> None:
        engine.submit([5], None).result()
        raise KeyboardInterrupt

    monkeypatch.setattr(Engine, "finish", interrupted)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    out = tmp_path / "out.json"
    given = ("--prompt", "5 6", "--max-tokens", 4000, "--ignore-eos", "--verify")
    assert _run("run", "--model", model, *given, "--json", out) == 130
    data = json.loads(out.read_text())
    assert data["requests"][0]["finish_reason"] == "abort"
    assert data["requests"][0]["token_ids"]
    assert data["summary"]["outcome"] == "interrupted"
    assert "interrupted" in capsys.readouterr().out


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    """Red when `splash`, `splash --help` or `splash --version` fail."""
    import splash

    assert _run("--version") == 0
    assert capsys.readouterr().out == f"splash {splash.__version__}\n"
    for arguments in ([], ["--help"], ["run", "--help"], ["replay", "--help"], ["doctor", "--help"]):
        assert _run(*arguments) == 0
        assert "Usage: splash" in capsys.readouterr().out
