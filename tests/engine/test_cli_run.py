"""`splash run` on in-process ranks: what it prints, what the JSON holds, and one line for each bad input."""

from __future__ import annotations

import json
import re
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from splash import cli
from splash.core.errors import RankFailure
from splash.hal.inproc import InProcessBackend
from tests.conftest import QuantisedMaker, TinyMaker
from tests.engine.tokenizers_made import byte_level

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


def test_a_trace_of_lengths_is_served(
    capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path
) -> None:
    """Red when a trace that `splash sim` takes is no load for ranks, or is served in other lengths."""
    file = tmp_path / "trace.csv"
    file.write_text("arrival_s,prompt_tokens,output_tokens\n0,9,5\n0.05,40,3\n")
    data = _json(capsys, "--model", model, "--workload", file, "--layout", "tp")
    assert [len(request["token_ids"]) for request in data["requests"]] == [5, 3]
    assert data["summary"]["prompt_tokens"] == 49


def test_a_trace_on_standard_output_is_there_alone(capsys: pytest.CaptureFixture[str], model: Path) -> None:
    """Red when `-` is a file's name, or the view's lines get between those of the trace."""
    assert _run("run", "--model", model, "--prompt", "5 6", "--max-tokens", 4, "--trace", "-") == 0
    captured = capsys.readouterr()
    kinds = {json.loads(line)["kind"] for line in captured.out.splitlines()}
    assert kinds == {"header", "event", "submit", "step"}
    assert "throughput" in captured.err


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


def test_a_trace_that_was_cut_short_says_so(
    capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path
) -> None:
    """Red when the trace of a run that was killed is replayed as if it were whole, or shows no table of what there is:
    cut between two lines or within one."""
    trace = tmp_path / "run.trace"
    assert _run("run", "--model", model, "--prompt", "5 6", "--max-tokens", 8, "--trace", trace) == 0
    lines = trace.read_text().splitlines(keepends=True)
    capsys.readouterr()
    for rest, complaint in [
        ("", f"{trace} was cut short"),
        (lines[-1][:20], f"{trace}:{len(lines)}: not JSON"),
    ]:
        trace.write_text("".join(lines[:-1]) + rest)
        assert _run("replay", trace, "--speed", 0) == 2
        shown = capsys.readouterr()
        assert "Run, up to here" in shown.out
        assert shown.err.startswith(f"splash: {complaint}")
        assert shown.err.count("\n") == 1


def test_a_trace_that_runs_backwards_says_where(
    capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path
) -> None:
    """Red when times that were edited by hand make odd figures instead of a line that says where they are."""
    trace = tmp_path / "run.trace"
    assert _run("run", "--model", model, "--prompt", "5 6", "--max-tokens", 8, "--trace", trace) == 0
    lines = trace.read_text().splitlines(keepends=True)
    lines[-1] = re.sub(r'"t":[^,]+', '"t":0.0', lines[-1])
    trace.write_text("".join(lines))
    capsys.readouterr()
    assert _run("replay", trace, "--speed", 0) == 2
    shown = capsys.readouterr()
    assert "Run, up to here" in shown.out
    assert shown.err.startswith(
        f"splash: {trace}:{len(lines)}: the event is at 0 s and the one before it at "
    )
    assert shown.err.count("\n") == 1


def test_a_workload_file(capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path) -> None:
    """Red when a file's requests are not served as they say."""
    file = tmp_path / "load.jsonl"
    file.write_text(
        '{"token_ids": [5, 6], "max_tokens": 3, "ignore_eos": true}\n'
        '{"token_ids": [7], "max_tokens": 9, "arrival_step": 4, "temperature": 1, "seed": 3, "ignore_eos": true}\n'
    )
    data = _json(capsys, "--model", model, "--workload", file, "--max-tokens", 5)
    assert [len(r["token_ids"]) for r in data["requests"]] == [3, 5]


LATE = (
    '{"token_ids": [5, 6], "max_tokens": 60, "ignore_eos": true}\n'
    '{"token_ids": [7, 8], "max_tokens": 1400, "arrival_step": 40, "ignore_eos": true}\n'
)
"""Under dcp there is room for the second, under tp there is not."""
LITTLE_ROOM = ("--layout", "dcp", "--kv-pages", 10, "--max-model-len", 1600)


def test_a_late_refusal_loses_nothing_else(
    capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path
) -> None:
    """Red when one request that no longer fits after a switch takes the figures of all others with it."""
    file, out = tmp_path / "late.jsonl", tmp_path / "out.json"
    file.write_text(LATE)
    given = ("--model", model, "--workload", file, *LITTLE_ROOM, "--switch", "5:tp")
    assert _run("run", *given, "--json", out) == 2
    first, late = json.loads(out.read_text())["requests"]
    assert (first["finish_reason"], len(first["token_ids"]), first["error"]) == ("length", 60, None)
    assert (late["finish_reason"], late["token_ids"]) == ("abort", [])
    assert "under tp; lower max_tokens" in late["error"]
    told = capsys.readouterr().out
    assert "throughput" in told
    assert [line for line in told.splitlines() if "refused" in line] == [
        f"request 1 was refused: {late['error']}"
    ]


def test_verify_is_refused_before_anything_runs(
    capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path
) -> None:
    """Red when a run is made whose verification cannot be: too long for tp, or a type without a tie gap."""
    file = tmp_path / "late.jsonl"
    file.write_text(LATE)
    for arguments, complaint in [
        (
            ("--workload", file, *LITTLE_ROOM),
            "late.jsonl:2: --verify serves it in tp too: the request may cache",
        ),
        (("--prompt", "5", "--dtype", "bfloat16"), "in float32 only, not in bfloat16 (--dtype)"),
        (("--prompt", "5", "--kv-dtype", "fp8"), "in float32 only, not in fp8 (--kv-dtype)"),
    ]:
        assert _run("run", "--model", model, *arguments, "--verify") == 2
        captured = capsys.readouterr()
        assert complaint in captured.err
        assert captured.err.count("\n") == 1
        assert not captured.out


def test_quantised_weights_and_kv(capsys: pytest.CaptureFixture[str], quantised_tiny: QuantisedMaker) -> None:
    """Red when ranks in processes of their own cannot load quantised weights or pack KV, or their user is not told."""
    folder = quantised_tiny("deepseek_v3", "fp8").folder
    given = ("--model", folder, "--prompt", "5 6 7", "--max-tokens", 8, "--ignore-eos", "--kv-dtype", "fp8")
    assert _run("run", *given, "--switch", "3:dp", "--no-tui", "--json", "-") == 0
    captured = capsys.readouterr()
    assert len(json.loads(captured.out)["requests"][0]["token_ids"]) == 8
    assert captured.err.startswith("quantised: fp8 in blocks of 128x128, dequantised to float32 when loaded")


def test_a_verification_says_that_it_serves_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, model: Path
) -> None:
    """Red when nothing tells why a run goes on after its tables, or standard output is told it."""
    from splash.engine import verify

    shown = []
    again = verify.verify

    def watched(*arguments: Any) -> Any:
        shown.append(capsys.readouterr())
        return again(*arguments)

    monkeypatch.setattr("splash.engine.verify.verify", watched)
    for more in ([], ["--json", "-"]):
        given = ("--prompt", "5 6", "--max-tokens", 4, "--no-tui", "--verify")
        assert _run("run", "--model", model, *given, *more) == 0
        before = shown.pop()
        assert "verify: serving 1 request again, in tp only, along the tokens served" in before.err
        assert "again" not in before.out


def test_a_failed_verification_loses_no_figures(
    monkeypatch: pytest.MonkeyPatch, model: Path, tmp_path: Path
) -> None:
    """Red when the JSON waits for the verification, which may fail."""

    def failing(*arguments: Any) -> Any:
        raise RankFailure("rank 1 was killed")

    monkeypatch.setattr("splash.engine.verify.verify", failing)
    out = tmp_path / "out.json"
    given = ("--model", model, "--prompt", "5 6", "--max-tokens", 4, "--verify", "--json", out)
    assert _run("run", *given) == 3
    assert json.loads(out.read_text())["summary"]["output_tokens"] == 4


def _broken(model: Path, folder: Path) -> dict[str, Path]:
    """Checkpoints that cannot be served."""
    made = {}
    names = (
        "truncated",
        "foreign",
        "unknown",
        "folder",
        "generation",
        "weights",
        "tokenizer",
        "templates",
        "jinja",
    )
    for name in (*names, "special"):
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
    for name, file in [
        ("folder", "config.json"),
        ("generation", "generation_config.json"),
        ("weights", "model.safetensors"),
        ("tokenizer", "tokenizer_config.json"),
    ]:
        (made[name] / file).unlink(missing_ok=True)
        (made[name] / file).mkdir()
    for name in ("tokenizer", "templates", "jinja", "special"):
        byte_level().save(str(made[name] / "tokenizer.json"))
    (made["templates"] / "tokenizer_config.json").write_text('{"chat_template": [{"template": "x"}]}')
    (made["special"] / "tokenizer_config.json").write_text('{"bos_token": {"special": true}}')
    (made["jinja"] / "chat_template.jinja").write_bytes(b"\xff")
    return made


def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path) -> None:
    """Red when bad input gives a traceback, more than a line, or no hint how to put it right."""
    broken = _broken(model, tmp_path)
    bad_file = tmp_path / "bad.jsonl"
    bad_file.write_text('{"token_ids": [1]}\n{"promt": "x"}\n')
    zero, late, later = (tmp_path / f"{name}.jsonl" for name in ("zero", "late", "later"))
    endless = tmp_path / "endless.csv"
    endless.write_text("arrival_s,prompt_tokens,output_tokens\n0,900000000,4\n")
    zero.write_text('{"token_ids": [1], "max_tokens": 0}')
    late.write_text('{"token_ids": [1], "arrival_s": 1e999}')
    later.write_text('{"token_ids": [1], "arrival_s": 1e300}')
    for arguments, complaint in [
        (("--model", tmp_path / "missing"), "does not exist"),
        (("--model", "glm-5.4"), "glm-5.4 does not exist (did you mean 'glm-5.3'?) (--model)"),
        (("--max-tokens", 99999999999999999999), "99999999999999999999 is more than 100,000,000 (--max-tokens)"),
        (("--max-model-len", 1000000000), "is more than 100,000,000"),
        (("--hw", "cuda"), "there is no GPU port in this version yet"),
        (("--hw", "b100"), "did you mean 'h100'?"),
        (("--model", bad_file), "is a file"),
        (("--model", broken["foreign"]), "has no config.json; expected are config.json, *.safetensors"),
        (("--model", broken["unknown"]), "model type 'mamba' is not supported; supported: deepseek_v3"),
        (("--model", broken["truncated"]), "model.safetensors"),
        (("--ranks", 3), "cannot be divided over 3 ranks; choose --ranks from 1, 2, 4, 8"),
        (("--ranks", 0), "--ranks"),
        (("--layout", "pd"), "unknown layout 'pd'; known: tp, dp, cp, dop, dcp, auto (--layout)"),
        (("--switch", "5"), "'5' is not STEP:LAYOUT"),
        (("--switch", "4:cp", "--switch", "4:dop"), "4:cp and 4:dop are at one step (--switch)"),
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
        (("--temperature", "nan"), "nan is not a finite number"),
        (("--top-p", 0), "0.0 is not in the range 0<x<=1 (--top-p)"),
        (("--verify", "--temperature", 1), "--verify compares greedy tokens"),
        (("--json", tmp_path / "no" / "folder.json"), "(--json)"),
        (("--trace", tmp_path / "no" / "folder.trace"), "(--trace)"),
        (("--model", "glm-5.3"), "its weights are not here: --hw b200 simulates it"),
        (("--workload", endless), "endless.csv:2: the prompt has 900000000 tokens"),
        (("--json", "-", "--trace", "-"), "--json and --trace cannot both go to standard output"),
        (("--workload", zero), "max_tokens is 0"),
        (("--workload", zero, "--max-tokens", 5), "max_tokens is 0"),
        (("--workload", late), f"{late}:1: arrival_s is inf"),
        (("--workload", later), f"{later}:1: arrival_s is 1e+300"),
        (("--workload", f"{tmp_path}/"), "cannot read the workload"),
        (("--model", broken["folder"]), "config.json: Is a directory"),
        (("--model", broken["generation"]), "generation_config.json: Is a directory"),
        (("--model", broken["weights"]), "model.safetensors: Is a directory"),
        (("--model", broken["tokenizer"]), "tokenizer_config.json: Is a directory"),
        (("--model", broken["templates"]), "chat_template is a list whose entries need a name and a template"),
        (("--model", broken["jinja"]), "chat_template.jinja is not UTF-8 text"),
        (("--model", broken["special"]), "bos_token has no content"),
        (("--frobnicate",), "no such option '--frobnicate'; `splash run --help` lists all"),
        (("--lay", "tp"), "'--layout'"),
        (("--copy-share", 2), "2.0 is not in the range 0<x<=1 (--copy-share)"),
    ]:  # fmt: skip
        given = arguments if "--model" in arguments else ("--model", model, *arguments)
        assert _run("run", *given) == 2, arguments
        captured = capsys.readouterr()
        assert captured.err.count("\n") == 1, captured.err
        assert captured.err.startswith("splash: ")
        assert complaint in captured.err
        assert not captured.out
    for name, closest in [("rnu", " (did you mean 'run'?)"), ("frobnicate", "")]:
        assert _run(name) == 2
        assert f"no such command '{name}'{closest}; known: run, sim, plan" in capsys.readouterr().err
    assert _run("profile", "-o", tmp_path / "no" / "folder.toml") == 2
    assert "(--out)" in capsys.readouterr().err
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
    assert "Run, interrupted: what was served until then" in capsys.readouterr().out


@pytest.mark.parametrize("signalled", [KeyboardInterrupt(), cli.Interrupted(signal.SIGTERM)])
def test_ctrl_c_while_ranks_load_leaves_a_json(
    monkeypatch: pytest.MonkeyPatch, model: Path, tmp_path: Path, signalled: BaseException
) -> None:
    """Red when who reads the JSON finds none, or that of a run before, after a signal that came too early to serve."""
    from splash.engine.deployment import Deployment

    def interrupted(*_: object, **__: object) -> None:
        raise signalled

    monkeypatch.setattr(Deployment, "launch", interrupted)
    out = tmp_path / "out.json"
    out.write_text("of a run before")
    assert _run("run", "--model", model, "--prompt", "5 6", "--prompt", "7", "--json", out) > 128
    data = json.loads(out.read_text())
    assert [(r["id"], r["token_ids"], r["finish_reason"]) for r in data["requests"]] == [
        (0, [], None),
        (1, [], None),
    ]
    assert (data["summary"]["outcome"], data["summary"]["never_arrived"]) == ("interrupted", 2)


def test_ctrl_c_in_a_replay_shows_what_was_seen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, model: Path, tmp_path: Path
) -> None:
    """Red when a replay that is left early has no table, or says that the run was interrupted."""
    trace = tmp_path / "run.trace"
    assert _run("run", "--model", model, "--prompt", "5 6", "--max-tokens", 8, "--trace", trace) == 0
    monkeypatch.setattr("splash.cli.pace.Pace.wait", _impatient(events=9))
    capsys.readouterr()
    assert _run("replay", trace) == 130
    shown = capsys.readouterr()
    assert "Run, up to here" in shown.out
    assert shown.err.split("\n")[-2:] == ["splash: interrupted", ""]


def _impatient(*, events: int) -> Callable[..., None]:
    """Waits for no event, and for one no more."""
    left = iter(range(events))

    def wait(*_: object) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt

    return wait


def test_ending_a_run_restores_ctrl_c() -> None:
    """Red when Ctrl-C is dead in the process that ran a command, here or after an error."""
    from splash.cli.run import _without_ctrl_c

    before = signal.getsignal(signal.SIGINT)
    with _without_ctrl_c():
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGINT) is before


def test_an_ignored_hangup_stays_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when `nohup splash run` ends with its terminal."""
    for number in (signal.SIGHUP, signal.SIGTERM):
        before = signal.getsignal(number)
        try:
            for handler in (signal.SIG_IGN, signal.SIG_DFL):
                signal.signal(number, handler)
                cli.catch_signals()
                assert (signal.getsignal(number) is signal.SIG_IGN) == (handler is signal.SIG_IGN)
        finally:
            signal.signal(number, before)


def test_a_full_disk_is_one_line(capsys: pytest.CaptureFixture[str], model: Path) -> None:
    """Red when figures that cannot be written give a traceback, or the table is lost too."""
    given = ("--prompt", "5 6", "--max-tokens", 4)
    assert _run("run", "--model", model, *given, "--json", "/dev/full") == 2
    captured = capsys.readouterr()
    assert captured.err == "splash: cannot write /dev/full: No space left on device (--json)\n"
    assert "throughput" in captured.out


def test_a_run_leaves_the_interpreter_as_it_was(model: Path) -> None:
    """Red when a run changes how long threads may keep each other from running, for good."""
    before = sys.getswitchinterval()
    assert _run("run", "--model", model, "--prompt", "5 6", "--max-tokens", 2, "--no-tui") == 0
    assert sys.getswitchinterval() == before


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    """Red when `splash`, `splash --help` or `splash --version` fail."""
    import splash

    assert _run("--version") == 0
    assert capsys.readouterr().out == f"splash {splash.__version__}\n"
    for arguments in ([], ["--help"], ["run", "--help"], ["replay", "--help"], ["doctor", "--help"]):
        assert _run(*arguments) == 0
        said = capsys.readouterr().out
        assert "Usage: splash" in said
        assert "None]" not in said, "a range without ends"
