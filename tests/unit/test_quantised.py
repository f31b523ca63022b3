"""Quantised checkpoints: what is loaded is what elements and scales mean, whatever the slice; bad ones are named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from splash.core.errors import SplashError
from splash.model.checkpoint import open_checkpoint
from splash.model.loader import load_rank, load_shard
from splash.spec.fields import Fields
from splash.spec.quantisation import read_quantisation
from tests.conftest import QuantisedMaker
from tests.quantised import INT8, MODELS, SCHEMES
from tests.unit.loading_kit import loaded_tensors, slot_views


def _loaded(folder: Path, ranks: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Every tensor of every rank, in one order."""
    found: list[torch.Tensor] = []
    with open_checkpoint(folder) as checkpoint:
        for rank in range(ranks):
            slot = slot_views(checkpoint.spec, ranks, dtype)
            load_shard(checkpoint, ranks=ranks, shard=rank, out=slot)
            found += slot.values()
            found += loaded_tensors(load_rank(checkpoint, rank=rank, ranks=ranks, dtype=dtype))
    return found


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("model", MODELS)
def test_every_slice_is_what_its_twin_has(
    quantised_tiny: QuantisedMaker, model: str, scheme: str, ranks: int
) -> None:
    """Red when a slice takes the scale of another tile: shards that begin within one, tiles that are not full."""
    made = quantised_tiny(model, scheme)
    for dtype in (torch.float32, torch.bfloat16):
        loaded, expected = _loaded(made.folder, ranks, dtype), _loaded(made.twin, ranks, dtype)
        assert len(loaded) == len(expected)
        for tensor, other in zip(loaded, expected, strict=True):
            assert torch.equal(tensor, other)


def test_any_part_of_a_matrix(quantised_tiny: QuantisedMaker) -> None:
    """Red when only the parts that the loader happens to ask for are right."""
    made = quantised_tiny("deepseek_v3_odd", "fp8_small_blocks")
    name = "model.layers.0.self_attn.kv_a_proj_with_mqa.weight"
    whole = load_file(made.twin / "model.safetensors")[name]
    with open_checkpoint(made.folder) as checkpoint:
        for rows in (range(0), range(47, 49), range(165, 166), range(48, 96), range(166)):
            for columns in (range(3, 3), range(1, 2), range(96, 144), range(95, 143)):
                part = checkpoint.slice(name, rows=rows, columns=columns)
                assert torch.equal(part, whole[rows.start : rows.stop, columns.start : columns.stop])


def test_tensors_that_are_left_plain_are_read_as_they_are(quantised_tiny: QuantisedMaker) -> None:
    """Red when a checkpoint must be quantised throughout: releases keep embeddings, head and routers in BF16."""
    made = quantised_tiny("deepseek_v3", "fp8")
    with open_checkpoint(made.folder) as checkpoint:
        assert set(checkpoint.scales) == set(made.quantised)
        assert "lm_head.weight" not in checkpoint.scales
        assert torch.equal(
            checkpoint.slice("lm_head.weight"), load_file(made.twin / "model.safetensors")["lm_head.weight"]
        )


# ---- what is refused

Q = "model.layers.1.self_attn.q_b_proj.weight"
Tensors = dict[str, torch.Tensor]


def _replace(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Tensors], Any]:
    return lambda tensors: tensors.update({name: change(tensors[name])})


SPOILED: dict[str, tuple[str, Callable[[Tensors], Any], dict[str, Any], str]] = {
    "scale of another shape": (
        "fp8",
        _replace(f"{Q}_scale_inv", lambda scale: scale[:-1]),
        {},
        f"{Q}_scale_inv has shape [2, 1], the scales of {Q} are [3, 1]",
    ),
    "scales of a plain division": (
        "fp8",
        _replace("model.layers.0.mlp.down_proj.weight_scale_inv", lambda scale: scale.t()),
        {},
        "has shape [2, 1], the scales of model.layers.0.mlp.down_proj.weight are [1, 2]",
    ),
    "no scale": (
        "int8",
        lambda tensors: tensors.pop(f"{Q}_scale"),
        {},
        f"{Q} is stored as I8 and has no scales",
    ),
    "scale of another type": (
        "fp8",
        _replace(f"{Q}_scale_inv", torch.Tensor.int),
        {},
        f"{Q}_scale_inv is stored as I32; scales are F32",
    ),
    "scale of a plain weight": (
        "fp8",
        _replace(Q, torch.Tensor.bfloat16),
        {},
        f"{Q} is stored as BF16 and yet has scales",
    ),
    "elements of another scheme": (
        "fp8",
        _replace(Q, lambda weight: weight.float().to(torch.int8)),
        {},
        f"{Q} is stored as I8 [384, 64], config.json says fp8 in blocks of 128x128",
    ),
    "elements of an unknown kind": (
        "fp8",
        _replace(Q, lambda weight: weight.float().to(torch.float8_e5m2)),
        {},
        f"{Q} is stored as F8_E5M2",
    ),
    "said to be plain": (
        "fp8",
        lambda tensors: None,
        {"quantization_config": {**SCHEMES["fp8"].config, "modules_to_not_convert": ["q_b_proj"]}},
        "q_b_proj.weight is stored as F8_E4M3, but config.json lists it as not quantised",
    ),
    "no config": (
        "int8",
        lambda tensors: None,
        {"quantization_config": None},
        "is quantised (I8), but config.json has no quantization_config",
    ),
    "zero points": (
        "int8",
        lambda tensors: tensors.update({Q.replace("weight", "weight_zero_point"): torch.zeros(1)}),
        {},
        "q_b_proj.weight_zero_point is not part of the deepseek_v3 model",
    ),
}


@pytest.mark.parametrize("case", SPOILED)
def test_bad_scales_are_named_when_a_checkpoint_is_opened(
    quantised_tiny: QuantisedMaker, tmp_path: Path, case: str
) -> None:
    """Red when a weight would be loaded with another's scale, or without one, or the message lacks its name."""
    scheme, change, changes, message = SPOILED[case]
    made = quantised_tiny("deepseek_v3", scheme)
    tensors = load_file(made.folder / "model.safetensors")
    change(tensors)
    save_file({name: t.contiguous() for name, t in tensors.items()}, tmp_path / "model.safetensors")
    config = json.loads((made.folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(SplashError) as caught:
        open_checkpoint(tmp_path)
    assert message in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def _weights(**changes: Any) -> dict[str, Any]:
    """The compressed-tensors config with other weights."""
    group = INT8["config_groups"]["group_0"]
    return {**INT8, "config_groups": {"group_0": {**group, "weights": {**group["weights"], **changes}}}}


UNKNOWN: dict[str, tuple[Any, str]] = {
    "another method": (
        {"quant_method": "awq", "bits": 4},
        "quant_method 'awq' is not supported; supported: b",
    ),
    "no method": ({"bits": 8}, "quant_method none is not supported"),
    "JSON within JSON": ("{}", "must be an object"),
    "another format": ({"quant_method": "fp8", "fmt": "e5m2"}, "fmt is the string 'e5m2', it must be e4m3"),
    "half a block": ({"quant_method": "fp8", "weight_block_size": [128]}, "two whole numbers"),
    "no block": ({"quant_method": "blockwise_int8"}, "weight_block_size"),
    "four bits": (_weights(num_bits=4), "num_bits is 4, it must be 8"),
    "zero points": (_weights(symmetric=False), "symmetric is False, it must be true"),
    "groups of columns": (_weights(strategy="group", group_size=128), "strategy is the string 'group'"),
    "two kinds": (
        {
            **INT8,
            "config_groups": {
                "a": INT8["config_groups"]["group_0"],
                "b": _weights(type="float")["config_groups"]["group_0"],
            },
        },
        "config_groups have 2 kinds of weights",
    ),
    "a bad pattern": ({**INT8, "ignore": ["re:("]}, "'re:(' is no regular expression"),
    "no list of names": ({**INT8, "ignore": [1]}, "ignore is [1], it must be a list of names"),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_unknown_quantisations_are_named(case: str) -> None:
    """Red when a scheme that is not computed is taken for one that is, or refused without its key."""
    value, message = UNKNOWN[case]
    with pytest.raises(SplashError) as caught:
        read_quantisation(Fields({"quantization_config": value}, "config.json"))
    assert message in str(caught.value)
    assert "config.json" in str(caught.value)


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (SCHEMES["fp8"].config, "fp8 in blocks of 128x128"),
        ({"quant_method": "fp8"}, "fp8 per tensor"),
        (INT8, "int8 per channel"),
        (_weights(strategy="block", block_structure=[128, 64], type="float"), "fp8 in blocks of 128x64"),
        ({"quant_method": "w8a8_int8"}, "int8 per channel"),
        ({"quant_method": "blockwise_int8", "weight_block_size": [64, 64]}, "int8 in blocks of 64x64"),
    ],
)
def test_shapes_of_quantization_config(config: dict[str, Any], name: str) -> None:
    """Red when a shape that releases have is refused or read as another one; nested ones count too."""
    for shape in ({"quantization_config": config}, {"text_config": {"quantization_config": config}}):
        found = read_quantisation(Fields(shape, "config.json"))
        assert found is not None
        assert found.name == name
    assert read_quantisation(Fields({"text_config": {}}, "config.json")) is None


def test_lists_of_plain_modules() -> None:
    """Red when `gate` also means `gate_proj`, or a pattern or a part of a name is not understood."""
    entries = ["lm_head", "mlp.gate", "model.layers.3.self_attn", "re:.*indexer"]
    config = {"quant_method": "fp8", "modules_to_not_convert": entries}
    found = read_quantisation(Fields({"quantization_config": config}, "config.json"))
    assert found is not None
    plain = {
        name
        for name in (
            "lm_head.weight",
            "model.layers.4.mlp.gate.weight",
            "model.layers.4.mlp.gate_proj.weight",
            "model.layers.3.self_attn.q_b_proj.weight",
            "model.layers.33.self_attn.q_b_proj.weight",
            "model.layers.4.self_attn.indexer.wk.weight",
        )
        if found.leaves_plain(name)
    }
    assert plain == {
        "lm_head.weight",
        "model.layers.4.mlp.gate.weight",
        "model.layers.3.self_attn.q_b_proj.weight",
        "model.layers.4.self_attn.indexer.wk.weight",
    }


def test_scale_shapes_count_partial_tiles() -> None:
    """Red when rows that do not fill a block are dropped: kv_a has 576 rows, 4.5 blocks, 5 rows of scales."""
    found = read_quantisation(Fields({"quantization_config": SCHEMES["fp8"].config}, "config.json"))
    assert found is not None
    assert found.scale_shape((576, 7168)) == (5, 56)
