"""Opening checkpoint folders: every shape that is served, and a clear line for every one that is not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from splash.core.errors import CheckpointError, ConfigError, SplashError
from splash.model.checkpoint import open_checkpoint
from splash.model.folder import INDEX, SINGLE_FILE
from tests.conftest import TinyMaker
from tests.tiny import KINDS

Edit = Callable[[Path], None]


@pytest.fixture
def copy_of(tiny: TinyMaker, tmp_path: Path) -> Callable[..., Path]:
    """A tiny checkpoint that the test may spoil."""

    def make(kind: str = "llama", **options: Any) -> Path:
        return Path(shutil.copytree(tiny(kind, **options), tmp_path / "copy"))

    return make


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shards", [1, 3])
def test_opens_what_transformers_saves(tiny: TinyMaker, kind: str, shards: int) -> None:
    """Red when a tensor of a supported model has another name or shape than we ask for."""
    with open_checkpoint(tiny(kind, shards=shards)) as checkpoint:
        assert checkpoint.spec.model_type == kind.removesuffix("_no_q_lora")
        assert checkpoint.spec.eos_token_ids == (1,)
        assert len({tensor.file for tensor in checkpoint.tensors.values()}) >= shards


def test_slices_are_what_the_file_holds(tiny: TinyMaker) -> None:
    """Red when rows and columns are mixed up, or a slice is off by one."""
    folder = tiny("llama")
    whole = load_file(folder / SINGLE_FILE)["model.layers.0.self_attn.q_proj.weight"]
    with open_checkpoint(folder) as checkpoint:
        name = "model.layers.0.self_attn.q_proj.weight"
        assert torch.equal(checkpoint.slice(name), whole)
        assert torch.equal(checkpoint.slice(name, rows=range(3, 17)), whole[3:17])
        assert torch.equal(checkpoint.slice(name, columns=range(5, 6)), whole[:, 5:6])
        assert torch.equal(checkpoint.slice(name, rows=range(2), columns=range(4, 9)), whole[:2, 4:9])
        assert checkpoint.slice(name, rows=range(4, 4)).shape == (0, whole.shape[1])
        assert checkpoint.slice("model.norm.weight", rows=range(7)).shape == (7,)


def test_slicing_reads_no_more_than_the_slice(tmp_path: Path) -> None:
    """Red when a slice copies the tensor: what the ranks map would then be T models."""
    save_file({"model.big.weight": torch.zeros(1024, 1024)}, tmp_path / "x.safetensors")
    with safe_open(tmp_path / "x.safetensors", framework="pt") as file:
        view = file.get_slice("model.big.weight")[:, 10:20]
        assert view.stride() == (1024, 1)


def test_tied_embeddings_need_no_head(tiny: TinyMaker) -> None:
    """Red when a tied checkpoint is asked for lm_head."""
    checkpoint = open_checkpoint(tiny("llama", tie_word_embeddings=True))
    assert checkpoint.spec.tied_embeddings
    assert "lm_head.weight" not in checkpoint.tensors


def test_several_files_without_an_index(copy_of: Callable[..., Path]) -> None:
    """Red when an index becomes necessary."""
    folder = copy_of(shards=3)
    (folder / INDEX).unlink()
    assert open_checkpoint(folder).spec.num_layers == 3


@pytest.mark.parametrize("prefix", ["model.language_model.", "language_model.model."])
def test_language_model_of_a_multimodal_checkpoint(copy_of: Callable[..., Path], prefix: str) -> None:
    """Red when the nested names or the nested config are no longer understood."""
    folder = copy_of()
    config = json.loads((folder / "config.json").read_text())
    _write(folder / "config.json", {"model_type": "llava", "text_config": config})
    tensors = load_file(folder / SINGLE_FILE)
    head = tensors.pop("lm_head.weight")
    nested = {prefix + name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    nested["language_model.lm_head.weight" if prefix.startswith("language") else "lm_head.weight"] = head
    save_file({**nested, "vision_tower.layers.0.weight": torch.zeros(2)}, folder / SINGLE_FILE)
    with open_checkpoint(folder) as checkpoint:
        assert torch.equal(checkpoint.slice("lm_head.weight"), head)
        assert checkpoint.slice("model.layers.2.mlp.down_proj.weight").shape == (128, 256)


def test_draft_layers_are_skipped_in_one_line(copy_of: Callable[..., Path]) -> None:
    """Red when the multi-token prediction layer of a released checkpoint is taken for a foreign weight, or not said."""
    folder = copy_of("deepseek_v3")
    extra = ("eh_proj.weight", "enorm.weight", "mlp.experts.0.gate_proj.weight", "shared_head.head.weight")
    _add_tensors(folder, {f"model.layers.3.{name}": torch.zeros(2, 2) for name in extra})
    checkpoint = open_checkpoint(folder)
    assert checkpoint.spec.num_layers == 3
    assert checkpoint.notes == ("layer 3 is for multi-token prediction: its 4 tensors are not loaded",)


def test_a_layer_without_the_marks_of_a_draft_is_foreign(copy_of: Callable[..., Path]) -> None:
    """Red when any layer too many passes as multi-token prediction: config.json may be of another model."""
    folder = copy_of("deepseek_v3")
    _add_tensors(folder, {"model.layers.3.mlp.up_proj.weight": torch.zeros(2, 2)})
    with pytest.raises(CheckpointError, match=r"model\.layers\.3\.mlp\.up_proj\.weight is not part of"):
        open_checkpoint(folder)


def test_what_is_not_loaded_is_named(copy_of: Callable[..., Path]) -> None:
    """Red when weights outside the decoder are ignored silently, or what everybody leaves out is mentioned."""
    folder = copy_of()
    assert open_checkpoint(folder).notes == ()
    extra = ("model.layers.0.self_attn.rotary_emb.inv_freq", "visual.a.weight", "visual.b.weight")
    _add_tensors(folder, {name: torch.zeros(2) for name in extra})
    notes = ("visual.a.weight (and 1 more) is not part of the decoder: not loaded",)
    assert open_checkpoint(folder).notes == notes


def test_a_quantisation_that_no_weight_has_is_said(copy_of: Callable[..., Path]) -> None:
    """Red when a plain release with a leftover quantization_config is refused, or served without a word."""
    folder = copy_of()
    _edit_config(quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]})(folder)
    checkpoint = open_checkpoint(folder)
    assert checkpoint.scales == {}
    assert checkpoint.notes == ("config.json says fp8 in blocks of 128x128, but no weight is stored so",)


def test_generation_config_decides_the_end_of_text(copy_of: Callable[..., Path]) -> None:
    """Red when eos ids are read from config.json although generation_config.json has others."""
    folder = copy_of()
    _write(folder / "generation_config.json", {"eos_token_id": [7, 9], "do_sample": True, "top_p": 0.95})
    assert open_checkpoint(folder).spec.eos_token_ids == (7, 9)
    _write(folder / "generation_config.json", {"temperature": 0.6})
    assert open_checkpoint(folder).spec.eos_token_ids == (1,)
    (folder / "generation_config.json").unlink()
    assert open_checkpoint(folder).spec.eos_token_ids == (1,)


def test_generation_config_of_a_wrong_type(copy_of: Callable[..., Path]) -> None:
    """Red when a string in the place of a token id ends in a traceback, or the file is not named."""
    folder = copy_of()
    _write(folder / "generation_config.json", {"eos_token_id": "</s>"})
    with pytest.raises(ConfigError, match=r"generation_config\.json.*eos_token_id"):
        open_checkpoint(folder)


def _write(file: Path, value: Any) -> None:
    file.write_text(json.dumps(value))


def _edit_config(**changes: Any) -> Edit:
    def edit(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        _write(folder / "config.json", {**config, **changes})

    return edit


def _add_tensors(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    save_file({**load_file(folder / SINGLE_FILE), **tensors}, folder / SINGLE_FILE)


def _without(name: str) -> Edit:
    def edit(folder: Path) -> None:
        save_file(
            {k: v for k, v in load_file(folder / SINGLE_FILE).items() if k != name}, folder / SINGLE_FILE
        )

    return edit


def _with(name: str, tensor: torch.Tensor) -> Edit:
    return lambda folder: _add_tensors(folder, {name: tensor})


def _cut(keep: Callable[[int], int]) -> Edit:
    """Cut the weights to `keep(size)` bytes."""

    def edit(folder: Path) -> None:
        file = folder / SINGLE_FILE
        file.write_bytes(file.read_bytes()[: keep(file.stat().st_size)])

    return edit


def _replace_weights(content: bytes) -> Edit:
    return lambda folder: (folder / SINGLE_FILE).write_bytes(content) and None


def _double_header(folder: Path) -> None:
    file = folder / SINGLE_FILE
    content = file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + length].replace(b"model.layers.1.", b"model.layers.0.")
    file.write_bytes(content[:8] + header + content[8 + length :])


def _only_bin(folder: Path) -> None:
    (folder / SINGLE_FILE).rename(folder / "pytorch_model.bin")


def _rename_file(folder: Path) -> None:
    (folder / SINGLE_FILE).rename(folder / "a.safetensors")
    shutil.copy(folder / "a.safetensors", folder / "b.safetensors")


SPOILED: dict[str, tuple[Edit, str]] = {
    "no config": (lambda folder: (folder / "config.json").unlink(), "it has no config.json"),
    "config is no JSON": (lambda folder: (folder / "config.json").write_text("{") and None, "not valid JSON"),
    "config is a string": (lambda folder: _write(folder / "config.json", "{}"), "JSON within JSON"),
    "unknown type": (_edit_config(model_type="gpt9"), "supported: deepseek_v3"),
    "no weights": (lambda folder: (folder / SINGLE_FILE).unlink(), "no safetensors files"),
    "only .bin": (_only_bin, "pytorch_model.bin, convert it"),
    "truncated data": (_cut(lambda size: size - 1), "is truncated"),
    "truncated header": (_cut(lambda size: 100), "is truncated"),
    "empty file": (_cut(lambda size: 0), "is truncated"),
    "longer than listed": (
        lambda folder: (folder / SINGLE_FILE).open("ab").write(b"xx") and None,
        "2 bytes more",
    ),
    "LFS pointer": (_replace_weights(b"version https://git-lfs.github.com/spec/v1\noid"), "git lfs pull"),
    "another format": (_replace_weights(b"PK\x03\x04" + b"\xff" * 100), "no safetensors file"),
    "damaged header": (_replace_weights((4).to_bytes(8, "little") + b"{abc"), "damaged header"),
    "tensor twice in a header": (_double_header, "comes twice"),
    "tensor in two files": (_rename_file, "is in both a.safetensors and b.safetensors"),
    "missing tensor": (
        _without("model.layers.1.mlp.up_proj.weight"),
        "model.layers.1.mlp.up_proj.weight is missing",
    ),
    "missing head": (_without("lm_head.weight"), "tie_word_embeddings"),
    "another shape": (
        _edit_config(intermediate_size=300),
        "has shape [256, 128], config.json asks for [300, 128]",
    ),
    "foreign tensor": (
        _with("model.layers.0.self_attn.q_norm.weight", torch.ones(16)),
        "model.layers.0.self_attn.q_norm.weight is not part of the llama model",
    ),
    "more layers than said": (_edit_config(num_hidden_layers=2), "(and 8 more) is not part of"),
    "quantised in an unknown way": (
        _edit_config(quantization_config={"quant_method": "gptq"}),
        "quant_method 'gptq' is not supported",
    ),
    "quantised by dtype": (
        _with("model.layers.0.mlp.up_proj.weight", torch.zeros(256, 128, dtype=torch.float8_e4m3fn)),
        "is quantised (F8_E4M3), but config.json has no quantization_config",
    ),
}


@pytest.mark.parametrize("name", SPOILED)
def test_a_spoiled_checkpoint_is_refused_in_one_line(copy_of: Callable[..., Path], name: str) -> None:
    """Red when a bad folder is served, ends in a traceback, or is refused without saying what is wrong."""
    edit, message = SPOILED[name]
    folder = copy_of()
    edit(folder)
    with pytest.raises(SplashError) as caught:
        open_checkpoint(folder)
    assert message in str(caught.value)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


SPOILED_INDEX: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "no map": (lambda index: {}, "no weight_map"),
    "absent file": (
        lambda index: {"weight_map": {**index["weight_map"], "model.norm.weight": "gone.safetensors"}},
        "lacks gone.safetensors",
    ),
    "wrong file": (
        lambda index: {
            "weight_map": dict.fromkeys(index["weight_map"], index["weight_map"]["model.norm.weight"])
        },
        "says that .* is in .*, but that file lacks it",
    ),
    "two files swapped": (
        lambda index: {"weight_map": _swapped(index["weight_map"])},
        "says that model.norm.weight is in .*, but it is in model-",
    ),
    "tensor not listed": (
        lambda index: {
            "weight_map": {k: v for k, v in index["weight_map"].items() if k != "model.norm.weight"}
        },
        "holds model.norm.weight, which model.safetensors.index.json does not list",
    ),
}


def _swapped(weight_map: dict[str, str]) -> dict[str, str]:
    """The final norm is said to be in another file, which has something too."""
    here = weight_map["model.norm.weight"]
    other = next(file for file in weight_map.values() if file != here)
    return {**weight_map, "model.norm.weight": other}


def test_a_tensor_in_two_indexed_files_is_named_with_both(copy_of: Callable[..., Path]) -> None:
    """Red when the index decides silently which of two different weights is meant."""
    folder = copy_of(shards=3)
    first, second = sorted(folder.glob("*.safetensors"))[:2]
    tensors = load_file(first)
    save_file({**load_file(second), "lm_head.weight": torch.zeros(512, 128)}, second)
    save_file({**tensors, "lm_head.weight": torch.ones(512, 128)}, first)
    with pytest.raises(CheckpointError, match=f"lm_head.weight is in both {first.name} and {second.name}"):
        open_checkpoint(folder)


@pytest.mark.parametrize("name", SPOILED_INDEX)
def test_a_spoiled_index_is_refused(copy_of: Callable[..., Path], name: str) -> None:
    """Red when an index is trusted blindly."""
    edit, message = SPOILED_INDEX[name]
    folder = copy_of(shards=3)
    _write(folder / INDEX, edit(json.loads((folder / INDEX).read_text())))
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(folder)


def test_a_missing_folder_and_a_file(tmp_path: Path) -> None:
    """Red when a wrong --model is not answered with what it should be."""
    with pytest.raises(CheckpointError, match="does not exist"):
        open_checkpoint(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="download the model first"):
        open_checkpoint("some-makers/some-model")
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="is a file"):
        open_checkpoint(tmp_path / "file")
