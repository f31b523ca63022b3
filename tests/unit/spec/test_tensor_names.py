"""The tensors of each model type against what transformers writes, and how ranks divide them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from splash.kv.slots import plan_memory, shard_format
from splash.spec.config import normalise
from splash.spec.model import ModelSpec
from splash.spec.tensors import (
    Division,
    Part,
    Precision,
    held_shape,
    model_tensors,
    rank_params,
    skipped_tensor,
)
from tests.tiny import VISION
from tests.unit import config_shapes as shapes

COMMON: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "max_position_embeddings": 4096,
    "pad_token_id": None,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 64,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "moe_intermediate_size": 64,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "index_n_heads": 32,
    "index_head_dim": 32,
    "index_topk": 16,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
SHARED = {"indexer_types": ["full", "full", "shared", "full"]}
FLASH_TEXT = {
    **{key: value for key, value in COMMON.items() if key != "first_k_dense_replace"},
    "num_hidden_layers": 8,
    "qk_rope_head_dim": 0,
    "index_kpool": 4,
    "linear_head_dim": 16,
    "linear_num_heads": 4,
    "mlp_layer_types": ["dense"] + ["sparse"] * 7,
}
KINDS = ("deepseek_v32", "glm_moe_dsa", "glm5_next")


def _save(kind: str, folder: Path) -> dict[str, tuple[int, ...]]:
    """A tiny checkpoint that transformers writes; its tensors' shapes by name."""
    transformers = pytest.importorskip("transformers")
    from splash.model.tensorfile import read_header

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if kind == "glm5_next":
        config = transformers.Glm5NextConfig(text_config=FLASH_TEXT, vision_config=VISION)
        model = transformers.Glm5NextForConditionalGeneration._from_config(config)
    elif kind == "glm_moe_dsa":
        model = transformers.GlmMoeDsaForCausalLM._from_config(
            transformers.GlmMoeDsaConfig(**COMMON, **SHARED)
        )
    else:
        model = transformers.DeepseekV32ForCausalLM._from_config(transformers.DeepseekV32Config(**COMMON))
    model.save_pretrained(folder)
    return {tensor.name: tensor.shape for tensor in read_header(folder / "model.safetensors")}


@pytest.mark.parametrize("kind", KINDS)
def test_names_and_shapes_are_those_that_transformers_writes(kind: str, tmp_path: Path) -> None:
    """Red when a tensor has another name or shape, is missing, or one is expected that no checkpoint has."""
    import json

    written = {
        name.replace("model.language_model.", "model."): shape
        for name, shape in _save(kind, tmp_path).items()
    }
    spec = normalise(json.loads((tmp_path / "config.json").read_text()))
    needed = {tensor.name: tensor.shape for tensor in model_tensors(spec)}
    assert needed == {name: shape for name, shape in written.items() if skipped_tensor(spec, name) is None}
    assert (len(needed) < len(written)) == (kind == "glm5_next")  # its vision tower is skipped


def test_what_is_skipped_has_a_reason() -> None:
    """Red when multi-token prediction or vision weights count as foreign, or foreign ones as skipped."""
    spec = normalise(shapes.GLM_5_3_FLASH)
    assert skipped_tensor(spec, "model.layers.45.eh_proj.weight") == "multi-token prediction"
    assert skipped_tensor(spec, "model.layers.45.self_attn.q_a_proj.weight") == "multi-token prediction"
    assert skipped_tensor(spec, "model.visual.blocks.0.attn.qkv.weight") == "vision"
    assert skipped_tensor(spec, "model.layers.46.eh_proj.weight") is None
    assert skipped_tensor(spec, "model.layers.44.eh_proj.weight") is None
    assert skipped_tensor(spec, "model.layers.4.eh_proj.weight") is None


def test_nothing_of_a_recurrent_layer_moves() -> None:
    """Red when KDA weights get into the slots, or are held whole by every rank."""
    spec, ranks = normalise(shapes.GLM_5_3_FLASH), 8
    kda = [tensor for tensor in model_tensors(spec) if tensor.part is Part.KDA]
    assert {tensor.division for tensor in kda} == {
        Division.STATE_ROWS,
        Division.STATE_COLUMNS,
        Division.NONE,
    }
    assert {tensor.layer for tensor in shard_format(spec, ranks, 2).tensors} == set(range(3, 45, 4))
    held = rank_params(spec, rank=3, ranks=ranks)
    sharded = held[Division.STATE_ROWS] + held[Division.STATE_COLUMNS]
    assert sharded * ranks == sum(t.num_params for t in kda if t.division is not Division.NONE)
    assert sharded * ranks == pytest.approx(4.644e9, rel=1e-3)  # MODELS §3.1


def test_down_projections_and_indexers_are_whole_on_every_rank() -> None:
    """Red when what is computed for all heads at once is divided over ranks."""
    spec = normalise(shapes.GLM_5_3)
    whole = [t for t in model_tensors(spec) if t.part in (Part.INDEXER, Part.LATENT)]
    assert {t.division for t in whole} == {Division.NONE}
    indexer = sum(t.num_params for t in whole if t.part is Part.INDEXER)
    assert indexer == pytest.approx(21 * 9.37e6, rel=1e-3)  # MODELS §3.1


def test_what_quantised_releases_keep() -> None:
    """Red when a tensor that the FP8 release has in BF16 or float32 counts as quantised (MODELS §1.1)."""
    spec = normalise(shapes.GLM_5_3)
    plain = {t.name.split("layers.")[-1].partition(".")[2] or t.name for t in _of(spec, Precision.PLAIN)}
    assert {"self_attn.indexer.weights_proj.weight", "self_attn.indexer.k_norm.bias"} <= plain
    assert {"model.embed_tokens.weight", "lm_head.weight"} <= {t.name for t in _of(spec, Precision.PLAIN)}
    assert {t.part for t in _of(spec, Precision.EXACT)} == {Part.ROUTER}
    linear = {t.name.rpartition("indexer.")[2] for t in _of(spec, Precision.LINEAR) if "indexer." in t.name}
    assert linear == {"wq_b.weight", "wk.weight"}


def _of(spec: ModelSpec, precision: Precision) -> list[Any]:
    return [tensor for tensor in model_tensors(spec) if tensor.precision is precision]


@pytest.mark.parametrize("name", ["GLM_5_3_FLASH", "GLM_5_3", "DEEPSEEK_V3_2", "QWEN3_235B_A22B"])
def test_head_shards_are_those_of_the_slots(name: str) -> None:
    """Red when what a rank is counted to hold of the attention differs from what its slot has."""
    spec, ranks = normalise(shapes.SHAPES[name]), 8
    held = sum(
        _size(held_shape(spec, tensor, rank=0, ranks=ranks))
        for tensor in model_tensors(spec)
        if tensor.division is Division.HEADS
    )
    assert held == sum(_size(tensor.shape) for tensor in shard_format(spec, ranks, 2).tensors)


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for width in shape:
        size *= width
    return size


def test_pages_have_sections_where_a_layer_caches_something() -> None:
    """Red when a page has index keys of layers without an indexer, or room for recurrent layers."""
    glm = plan_memory(normalise(shapes.GLM_5_3), ranks=8, dtype="bfloat16", block_size=64, kv_pages=9).pages
    assert [s.layer for s in glm.sections if s.field.name == "index"] == [0, 1, *range(2, 78, 4)]
    assert glm.token_bytes == 78 * 1152 + 21 * 256
    flash = plan_memory(
        normalise(shapes.GLM_5_3_FLASH), ranks=8, dtype="bfloat16", block_size=64, kv_pages=90
    ).pages
    assert {s.layer for s in flash.sections} == set(range(3, 45, 4))
    assert flash.token_bytes == 11 * (1024 + 64)
    assert flash.page_bytes == 64 * flash.token_bytes
    assert flash.num_layers == 45
