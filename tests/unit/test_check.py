"""The dry run: every rank built without memory, and every problem of a folder named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from splash import cli
from splash.cli.plan_check import Checked, as_json
from splash.core.errors import CheckpointError
from splash.model.check import check_folder, check_rank
from splash.model.checkpoint import open_checkpoint
from splash.model.folder import INDEX, SINGLE_FILE
from splash.spec.known import known_model
from splash.spec.model import ModelSpec
from splash.spec.tensors import Division, LogicalTensor, Part, model_tensors, rank_params
from tests.conftest import TinyMaker
from tests.quantised import SCHEMES, quantise
from tests.tiny import KINDS

MLP = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture
def copy_of(tiny: TinyMaker, tmp_path: Path) -> Callable[..., Path]:
    """A copy of a tiny checkpoint, to be damaged."""

    def make(kind: str = "llama", **options: Any) -> Path:
        folder = tmp_path / "copy"
        shutil.copytree(tiny(kind, **options), folder)
        return folder

    return make


@pytest.mark.parametrize("ranks", [1, 2, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_every_rank_of_every_kind_is_built(tiny: TinyMaker, kind: str, ranks: int) -> None:
    """Red when the loader and the tensors of the spec disagree on what a rank holds."""
    spec = open_checkpoint(tiny(kind)).spec
    for rank in range(ranks):
        checked = check_rank(spec, rank=rank, ranks=ranks)
        assert checked.problems == ()
        assert checked.params == sum(rank_params(spec, rank=rank, ranks=ranks).values())


@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        ("glm-5.3", 16),
        ("glm-5.3-flash", 16),
        ("deepseek-v3.2", 16),
        ("deepseek-v3", 16),
        ("glm-4.7-flash", 4),
        ("llama-3.1-405b", 16),
        ("qwen3-235b", 16),
    ],
)
def test_real_configurations_are_built(name: str, ranks: int) -> None:
    """Red when a size of a released model cannot be loaded on that many ranks."""
    assert check_rank(known_model(name), rank=ranks - 1, ranks=ranks).problems == ()


def test_a_tensor_that_nobody_loads_is_named(tiny: TinyMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when the loader may leave out a tensor that the model computes with."""

    def more(spec: ModelSpec) -> Iterator[LogicalTensor]:
        yield from model_tensors(spec)
        yield LogicalTensor("model.layers.0.new.weight", (4, 4), Division.NONE, Part.LATENT)

    monkeypatch.setattr("splash.model.check.model_tensors", more)
    checked = check_rank(open_checkpoint(tiny("llama")).spec, rank=1, ranks=2)
    assert checked.problems == ("rank 1 loads 0 elements of model.layers.0.new.weight, it holds 16",)


def test_a_tensor_that_does_not_exist_is_named(tiny: TinyMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when the loader may ask for what no checkpoint has."""

    def fewer(spec: ModelSpec) -> Iterator[LogicalTensor]:
        return (tensor for tensor in model_tensors(spec) if tensor.name != MLP)

    monkeypatch.setattr("splash.model.check.model_tensors", fewer)
    (problem,) = check_rank(open_checkpoint(tiny("llama")).spec, rank=0, ranks=2).problems
    assert f"asks for {MLP}, which the model does not have" in problem


def test_a_sound_folder_has_no_problems(tiny: TinyMaker) -> None:
    """Red when a checkpoint that is served does not pass."""
    for options in ({}, {"shards": 3}):
        assert check_folder(tiny("llama", **options)).problems == ()


def test_scales_belong_to_their_matrices(tiny: TinyMaker, tmp_path: Path) -> None:
    """Red when scales count as extra tensors, or wrong ones pass."""
    made = quantise(tiny("deepseek_v3"), tmp_path, SCHEMES["fp8"])
    assert check_folder(made.folder).problems == ()
    tensors = load_file(made.folder / SINGLE_FILE)
    tensors[f"{made.quantised[0]}_scale_inv"] = torch.ones(7, 7)
    save_file(tensors, made.folder / SINGLE_FILE)
    (problem,) = check_folder(made.folder).problems
    assert f"{made.quantised[0]}_scale_inv has shape [7, 7]" in problem


def test_every_problem_is_named(copy_of: Callable[..., Path]) -> None:
    """Red when the check stops at the first problem, or one has no name."""
    folder = copy_of()
    tensors = load_file(folder / SINGLE_FILE)
    del tensors["model.layers.0.self_attn.q_proj.weight"]
    tensors[MLP] = tensors[MLP][:-1]
    tensors["model.layers.2.self_attn.k_norm.weight"] = torch.ones(16)
    save_file(tensors, folder / SINGLE_FILE)
    missing, shape, extra = check_folder(folder).problems
    assert missing == "missing: model.layers.0.self_attn.q_proj.weight [128, 128]"
    assert shape == f"wrong shape: {MLP} is [255, 128] in {SINGLE_FILE}, config.json asks for [256, 128]"
    assert extra == "extra: model.layers.2.self_attn.k_norm.weight is not part of the llama model"


def test_a_tensor_in_two_files_is_named(copy_of: Callable[..., Path]) -> None:
    """Red when one of two copies wins silently."""
    folder = copy_of(shards=3)
    first, second, *_ = sorted(folder.glob("*.safetensors"))
    name, tensor = next(iter(load_file(first).items()))
    save_file({**load_file(second), name: tensor}, second)
    problems = check_folder(folder).problems
    assert problems == (f"duplicate: {name} is in {first.name} and {second.name}",)


def test_an_index_alone_is_enough_for_the_names(copy_of: Callable[..., Path]) -> None:
    """Red when a model must be downloaded before its names can be checked."""
    folder = copy_of(shards=3)
    index = json.loads((folder / INDEX).read_text())
    for file in folder.glob("*.safetensors"):
        file.unlink()
    checked = check_folder(folder)
    assert checked.problems == ()
    assert "is not there: the shapes in it are not checked" in checked.notes[-1]
    del index["weight_map"][MLP]
    (folder / INDEX).write_text(json.dumps(index))
    assert check_folder(folder).problems == (f"missing: {MLP} [256, 128]",)


def test_an_index_that_lies_is_found_out(copy_of: Callable[..., Path]) -> None:
    """Red when a tensor may lie in another file than the index says, or in none."""
    folder = copy_of(shards=3)
    index = json.loads((folder / INDEX).read_text())
    files = sorted(set(index["weight_map"].values()))
    name = next(name for name, file in index["weight_map"].items() if file == files[0])
    index["weight_map"][name] = files[1]
    index["weight_map"]["model.layers.9.gone.weight"] = files[0]
    (folder / INDEX).write_text(json.dumps(index))
    problems = check_folder(folder).problems
    assert f"misplaced: {name} is in {files[0]}, {INDEX} says {files[1]}" in problems
    assert f"missing: model.layers.9.gone.weight, which {INDEX} says is in {files[0]}" in problems


def test_a_folder_without_weights_is_refused(copy_of: Callable[..., Path]) -> None:
    """Red when an empty folder counts as every tensor missing."""
    folder = copy_of()
    (folder / SINGLE_FILE).unlink()
    with pytest.raises(CheckpointError, match="neither safetensors files nor"):
        check_folder(folder)


def _plan(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = cli._run(["plan", *map(str, arguments), "--check"])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_command_prints_what_a_model_takes(capsys: pytest.CaptureFixture[str]) -> None:
    """Red when parameters, ranks or layouts go missing from what is printed."""
    code, out, _ = _plan(capsys, "--model", "llama-3.1-405b", "--ranks", 16)
    assert code == 0
    assert "llama-3.1-405b: llama, 126 layers, 405.85 B" in out
    assert "tp, dop, dcp" in out
    assert "16 ranks built, every tensor lies where it belongs" in out


def test_json_has_bytes_per_layout(capsys: pytest.CaptureFixture[str], tiny: TinyMaker) -> None:
    """Red when a key goes missing, or anything else is printed there."""
    folder = tiny("llama")
    code, out, _ = _plan(capsys, "--model", folder, "--ranks", 2, "--json", "-")
    check = json.loads(out)["check"]
    assert code == 0
    assert check["problems"] == []
    assert check["ranks"] == 2
    layouts = check["layouts"]
    own, full = (layouts[name]["weight_bytes_per_rank"]["float32"] for name in ("tp", "dp"))
    assert own == 4 * check["params_per_rank"][1]
    assert full > own
    spec = open_checkpoint(folder).spec
    assert check["num_params"] == sum(part["num_params"] for part in check["parts"].values())
    assert check["num_params"] == sum(tensor.num_params for tensor in model_tensors(spec))


def test_what_placement_saves_is_said() -> None:
    """Red when the index keys that are not cached, or the recurrent layers that are not copied, go unmentioned."""
    glm, flash = (
        as_json(Checked(name, known_model(name), 8, None, (), (), ()))
        for name in ("glm-5.3", "glm-5.3-flash")
    )
    assert glm["index_layers"][:5] == [0, 1, 2, 6, 10]
    assert glm["index_gain"] == pytest.approx(0.14, abs=0.005)
    assert glm["kv_bytes_per_token"] == {"bfloat16": 92_628, "fp8": 53_940}
    assert flash["index_gain"] == 0
    assert flash["kda_saving_bytes_per_rank"] / 2**30 == pytest.approx(3.78, abs=0.02)


def test_problems_end_with_one(capsys: pytest.CaptureFixture[str], copy_of: Callable[..., Path]) -> None:
    """Red when a damaged checkpoint counts as checked."""
    folder = copy_of()
    tensors = load_file(folder / SINGLE_FILE)
    del tensors[MLP]
    save_file(tensors, folder / SINGLE_FILE)
    code, out, _ = _plan(capsys, "--model", folder, "--ranks", 2)
    assert code == 1
    assert f"missing: {MLP} [256, 128]" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "glm-5.2"), "did you mean 'glm-5.3'?"),
        (("--model", "some/where"), "does not exist"),
        (("--model", "glm-4.7-flash", "--ranks", 8), "choose --ranks from 1, 2, 4, 5, 10, 20"),
    ],
)
def test_bad_input_is_one_line(
    capsys: pytest.CaptureFixture[str], arguments: tuple[object, ...], message: str
) -> None:
    """Red when a typing error ends in a traceback."""
    code, out, err = _plan(capsys, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
