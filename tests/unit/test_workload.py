"""Workloads: seeded ones repeat and fit the model, files are read or refused by file and line."""

from pathlib import Path

import pytest

from splash.core.errors import ConfigError
from splash.engine.items import Item, MadeUp, When, fitted, ids_for
from splash.engine.workload import WORKLOADS, load_lengths, load_workload
from splash.engine.workload_file import read_workload


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_seed_repeats_a_workload(name: str) -> None:
    """Red when a workload draws from anything but its seed."""
    first, again, other = (load_workload(name, seed=seed) for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("limit", [2, 8, 100, 4096])
def test_workloads_fit_the_model(name: str, limit: int) -> None:
    """Red when a named workload asks a model for more than its context."""
    for item in load_workload(name, seed=0):
        assert isinstance(item.prompt, str)
        assert item.max_tokens is not None
        assert item.elastic
        ids = ids_for(item.prompt, seed=0, vocab_size=10)
        prompt, max_tokens = fitted(ids, item.max_tokens, limit)
        assert prompt == ids[-len(prompt) :]
        assert 1 <= max_tokens <= item.max_tokens
        assert len(prompt) + max_tokens <= limit


def test_the_default_drains_then_meets_a_long_prompt() -> None:
    """Red when the default load no longer has its three phases."""
    items = load_workload("default", seed=0)
    wave = [item for item in items if item.when.step < 1000]
    lengths = sorted(item.max_tokens or 0 for item in wave)
    assert len(wave) > 40
    assert lengths[len(wave) // 2] < 200 < 1000 < lengths[-2]
    assert max(len(item.prompt) for item in items if item.when.step >= 1000) > 6000


def test_a_file_is_read(tmp_path: Path) -> None:
    """Red when a key of the format is not understood."""
    file = tmp_path / "load.jsonl"
    file.write_text(
        '{"prompt": "ROMEO."}\n'
        "\n"
        '{"token_ids": [5, 6], "max_tokens": 3, "arrival_step": 7, "arrival_s": 1, "seed": 4, "temperature": 1,'
        ' "top_k": 2, "top_p": 0.5, "min_p": 0.1, "stop_token_ids": [9], "ignore_eos": true}\n'
    )
    assert read_workload(file) == [
        Item("ROMEO.", place="load.jsonl:1"),
        Item((5, 6), 3, When(7, 1.0), 1.0, 2, 0.5, 0.1, 4, (9,), True, place="load.jsonl:3"),
    ]
    assert load_workload(str(file), seed=0) == read_workload(file)


@pytest.mark.parametrize(
    "text",
    [
        "arrival_s,prompt_tokens,output_tokens\n0,3,2\n1.5,40,7\n",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:01,3,2\n2024-05-10 00:00:02.5,40,7\n",
        '{"timestamp": 0, "input_length": 3, "output_length": 2}\n'
        '{"timestamp": 1500, "input_length": 40, "output_length": 7}\n',
    ],
)
def test_a_trace_of_lengths_is_a_workload_too(tmp_path: Path, text: str) -> None:
    """Red when what `splash sim` takes is no load for a device, or its requests are all the same."""
    file = tmp_path / "trace.dat"
    file.write_text(text)
    items = load_workload(str(file), seed=0)
    assert [(item.when.time_s, item.max_tokens, item.ignore_eos) for item in items] == [
        (0.0, 2, True),
        (1.5, 7, True),
    ]
    assert all(isinstance(item.prompt, MadeUp) and item.place.startswith("trace.dat:") for item in items)
    short, long = (
        ids_for(item.prompt, seed=0, vocab_size=50) for item in items if isinstance(item.prompt, MadeUp)
    )
    assert (len(short), len(long)) == (3, 40)
    assert long[:3] != short
    assert max(long) < 50


def test_a_broken_trace_is_named_by_line(tmp_path: Path) -> None:
    """Red when a trace is taken for prompts, and its error is about JSON."""
    file = tmp_path / "trace.csv"
    file.write_text("arrival_s,prompt_tokens,output_tokens\n0,3,-2\n")
    with pytest.raises(ConfigError, match=r"trace.csv:2: output_tokens is -2; it must be at least 1 token"):
        load_workload(str(file), seed=0)
    with pytest.raises(ConfigError, match=r"unknown workload 'rl-drain' \(it is for simulated hardware\)"):
        load_workload("rl-drain", seed=0)


@pytest.mark.parametrize(
    "text",
    [
        "\n# splash\n\nAn engine, and more.\n",
        "[build-system]\nrequires = []\n",
        '{\n  "a": 1\n}\n',
        "a,b\n1,2\n",
    ],
)
def test_what_begins_like_no_workload_is_told_how_one_does(tmp_path: Path, text: str) -> None:
    """Red when a file of something else is taken for a CSV, and the complaint is of its fields."""
    file = tmp_path / "README.csv"
    file.write_text(text)
    first, line = text.split()[0], 1 + text.startswith("\n")
    for load, keys in ((load_workload, "prompt or token_ids, or lengths"), (load_lengths, "lengths")):
        with pytest.raises(ConfigError) as error:
            load(str(file), seed=0)
        said = str(error.value)
        assert said.startswith(
            f"{file}:{line}: not a workload: the first line tells what a file is, JSON lines by"
        )
        assert f"by an object ({keys}), a CSV trace by its columns" in said
        assert f"; '{first}" in said
        assert said.endswith("' is neither (--workload)")


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"prompt": "x"', "not JSON, at column 15: Expecting"),
        ("[]", "expected a JSON object, found a list"),
        ('{"max_tokens": 3}', "give either prompt or token_ids"),
        ('{"prompt": "x", "token_ids": [1]}', "give either prompt or token_ids"),
        ('{"prompt": 3}', "prompt is 3; it must be text"),
        ('{"token_ids": [1, "2"]}', "token_ids must be a list of whole numbers"),
        ('{"prompt": "x", "max_token": 3}', "unknown key 'max_token'"),
        ('{"prompt": "x", "max_tokens": 1.5}', "max_tokens is 1.5; it must be a whole number"),
        ('{"prompt": "x", "max_tokens": true}', "max_tokens is True; it must be a whole number"),
        ('{"prompt": "x", "arrival_s": NaN}', "NaN"),
        ('{"prompt": "x", "arrival_s": -1}', "arrival_s is -1.0; it must be from 0 to"),
        ('{"prompt": "x", "arrival_s": 1}', "sort the lines"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, complaint: str) -> None:
    """Red when a malformed request is served, skipped, or refused without saying where it is."""
    file = tmp_path / "load.jsonl"
    file.write_text('{"prompt": "a", "arrival_s": 2}\n' + line + "\n")
    with pytest.raises(ConfigError) as error:
        read_workload(file)
    assert str(error.value).startswith(f"{file}:2: ")
    assert str(error.value).endswith(" (--workload)")
    assert complaint in str(error.value)


@pytest.mark.parametrize(("first", "second"), [("arrival_s", "arrival_step"), ("arrival_step", "arrival_s")])
def test_steps_and_seconds_do_not_mix(tmp_path: Path, first: str, second: str) -> None:
    """Red when requests that no order could satisfy are to be sorted."""
    file = tmp_path / "load.jsonl"
    file.write_text(f'{{"prompt": "a", "{first}": 2}}\n{{"prompt": "b", "{second}": 5}}\n')
    with pytest.raises(ConfigError, match=rf"jsonl:2: it has {second} and .* {first}: .*use one of the two"):
        read_workload(file)


def test_what_is_no_workload_is_refused(tmp_path: Path) -> None:
    """Red when a missing or empty file or an unknown name gives anything but a sentence."""
    (tmp_path / "empty.jsonl").write_text("\n")
    for name, complaint in {
        "brust": "unknown workload 'brust' .did you mean 'burst'.*; known: default, burst, long, steady",
        str(tmp_path / "missing.jsonl"): "cannot read the workload",
        str(tmp_path / "empty.jsonl"): "empty.jsonl:1: there is no request",
        str(tmp_path): "cannot read the workload",
    }.items():
        with pytest.raises(ConfigError, match=complaint):
            load_workload(name, seed=0)
