"""`splash plan` as a command: the capacity table of REFERENCE §4, its JSON, its tables, and bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from splash import cli
from splash.layout.layouts import LAYOUTS

GIB = 2**30


def plan(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """The JSON of a plan that exits well, alone on standard output."""
    assert cli._run(["plan", *arguments, "--json", "-"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def failure(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that bad input is answered with."""
    assert cli._run(["plan", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


ROWS = (
    ("deepseek-v3.2", "h200", ("80.1", "88.6"), ("1.03", "6.75", "8.27"), "1.226"),
    ("glm-5.3", "b200", ("88.2", "97.6"), ("1.27", "8.69", "10.2"), "1.173"),
    ("glm-5.3-flash", "bw1000", ("37.9", "38.9"), ("1.45", "8.25", "8.77"), "1.063"),
)
"""REFERENCE §4: GiB of weights in tp and dp, million tokens of tp, dp and dop, dop over dp."""


def agrees(value: float, printed: str) -> bool:
    """To one unit of the last digit: the table's device sizes and vision tower are rounded themselves."""
    return abs(value - float(printed)) <= 1.001 * 10 ** -len(printed.partition(".")[2])


@pytest.mark.parametrize(("model", "hw", "weights", "tokens", "ratio"), ROWS, ids=[row[0] for row in ROWS])
def test_the_capacity_table_with_the_shipped_profiles(
    capsys: pytest.CaptureFixture[str],
    model: str,
    hw: str,
    weights: tuple[str, str],
    tokens: tuple[str, str, str],
    ratio: str,
) -> None:
    """Red when a profile's device total, a model's usual settings or a term of the sum is another than the table's."""
    found = plan(capsys, "--model", model)
    assert found["deployment"]["hardware"] == hw
    assert found["deployment"]["ranks"] == 8
    layouts, reserve = found["layouts"], found["memory"]["reserve_bytes"]
    for name, printed in zip(("tp", "dp"), weights, strict=True):
        assert agrees((layouts[name]["counted"]["weight_bytes_per_rank"] + reserve) / GIB, printed)
    counted = [layouts[name]["counted"]["kv_tokens"] for name in ("tp", "dp", "dop")]
    for number, printed in zip(counted, tokens, strict=True):
        assert agrees(number / 1e6, printed), (number, printed)
    assert agrees(counted[2] / counted[1], ratio)
    for name, number in zip(("tp", "dp", "dop"), counted, strict=True):
        assert layouts[name]["kv_tokens"] == pytest.approx(number, rel=0.01)


def test_terms_of_the_memory_add_up(capsys: pytest.CaptureFixture[str]) -> None:
    """Red when a term is missing from what is shown, or one is counted that the layouts are not charged."""
    found = plan(capsys, "--hw", "dcu")
    memory, layouts = found["memory"], found["layouts"]
    own = sum(memory["parts"].values()) + memory["scale_bytes"]
    assert layouts["tp"]["weight_bytes_per_rank"] == own
    assert layouts["dp"]["weight_bytes_per_rank"] == own + 7 * memory["shard_bytes"]
    for room in layouts.values():
        used = room["weight_bytes_per_rank"] + memory["reserve_bytes"] + room["free_bytes_per_rank"]
        assert used == memory["usable_bytes"]
    assert memory["token_bytes"] == sum(f["layers"] * f["token_bytes"] for f in memory["cached"])
    assert memory["parts"]["KDA"] < memory["whole_kda_bytes"] / 7
    assert found["deployment"]["model"] == "glm-5.3-flash"


def test_index_keys_lie_where_an_indexer_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Red when the term for 21 of 78 layers is not shown."""
    memory = plan(capsys, "--model", "glm-5.3")["memory"]
    (index,) = (field for field in memory["cached"] if field["name"] == "index")
    assert (index["layers"], memory["num_layers"]) == (21, 78)
    assert memory["index_gain"] == pytest.approx(0.14, abs=0.005)


def test_json_says_the_best_of_every_cell(capsys: pytest.CaptureFixture[str]) -> None:
    """Red when a key that others read is renamed, or a cell's layout is not the fastest that holds it."""
    found = plan(capsys, "--model", "glm-5.3", "--ranks", "16", "--dtype", "int8")
    assert found["fits"] is True
    assert set(found["layouts"]) == set(LAYOUTS)
    assert {cell["phase"] for cell in found["best"]} == {"decode", "prefill"}
    for cell in found["best"]:
        assert {"batch", "chunk", "context", "layout", "seconds"} <= set(cell)
        held = {name: cell["seconds"][name] for name in cell["holding"]}
        assert cell["layout"] == min(held, key=held.__getitem__, default=None)


@pytest.mark.parametrize("model", ["glm-5.3", "glm-5.3-flash", "qwen3-235b"])
def test_tables_fit_the_page_and_are_plain(capsys: pytest.CaptureFixture[str], model: str) -> None:
    """Red when a line is wider than 100 columns, or colours go to a file."""
    assert cli._run(["plan", "--model", model]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert not any("\x1b" in line for line in lines)
    assert max(map(len, lines)) <= 100
    assert sum(line.startswith("Prefill") for line in lines) == 2


def test_a_model_that_does_not_fit_says_what_would(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Red when the number of GiB or a remedy is not said, or the JSON that was asked for is not written."""
    out = tmp_path / "plan.json"
    error = failure(capsys, "--model", "deepseek-v3.2", "--ranks", "4", "--json", str(out))
    found = json.loads(out.read_text())
    assert found["fits"] is False
    assert f"{found['lacking_bytes'] / GIB:.1f} GiB too much" in error
    assert found["would_fit"]["ranks"] == 8
    assert "--ranks 8" in error
    assert found["best"] == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model", "glm-53"], ["glm-5.3", "qwen3-235b"]),
        (["--hw", "b20"], ["did you mean 'b200'", "dcu", "mi300x"]),
        (["--model", "glm-5.3", "--ranks", "3"], ["1, 2, 4, 8, 16, 32, 64"]),
        (["--model", "glm-5.3", "--dtype", "fp9"], ["fp8_block", "--dtype"]),
        (["--model", "glm-5.3", "--kv-dtype", "int4"], ["bfloat16", "--kv-dtype"]),
        (["--model", "glm-5.3", "--memory-fraction", "85"], ["--memory-fraction"]),
        (["--ttft", "1"], ["--target-rate"]),
        (["--target-rate", "8", "--ranks", "4"], ["leave out --ranks", "--max-ranks"]),
        (["--target-rate", "nan"], ["--target-rate", "not a finite number"]),
        (["--target-rate", "inf"], ["--target-rate", "not a finite number"]),
        (["--memory-fraction", "nan"], ["--memory-fraction", "not a finite number"]),
        (["--check"], ["--model"]),
    ],
)
def test_bad_input_is_answered_with_what_would_do(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: list[str]
) -> None:
    """Red when an error leaves out what is known, or which option is meant."""
    error = failure(capsys, *arguments)
    assert all(word in error for word in said), error


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--ttft", "1"], "--ttft and --tpot are the targets of --objective goodput"),
        (["--tpot", "1"], "--ttft and --tpot are the targets of --objective goodput"),
        (["--ranks", "9" * 20], "is more than 100,000,000"),
    ],
)
def test_what_a_simulation_would_ignore_is_refused(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    """Red when `splash sim` takes an option that changes nothing, or a number of what cannot be."""
    assert cli._run(["sim", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_rate_is_answered_with_ranks_and_layout(capsys: pytest.CaptureFixture[str]) -> None:
    """Red when the answer is not in the JSON, or the plan is of other ranks than those found."""
    found = plan(capsys, "--hw", "dcu", "--target-rate", "6", "--tpot", "0.2")
    target = found["target"]
    assert target["layout"] in LAYOUTS
    assert found["deployment"]["ranks"] == target["ranks"]
    assert target["service"]["tpot_s"] <= 0.2
    assert list(target["tried"])[-1] == str(target["ranks"])


def test_a_rate_that_none_carries_is_said_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    """Red when the limit is not said, drowns in a plan that does not do, or the exit code is that of a success."""
    arguments = ["plan", "--hw", "dcu", "--max-ranks", "8", "--target-rate", "100"]
    assert cli._run(arguments) == 1
    shown = capsys.readouterr().out
    assert "The most is" in shown
    assert "Memory of a rank" not in shown
