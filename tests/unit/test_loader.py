"""What the ranks load together is what transformers has, for every model type and rank count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from splash.model.attention.weights import GQAWeights, MLAWeights
from splash.model.checkpoint import open_checkpoint
from splash.model.loader import DTYPES, load_rank, load_shard
from splash.model.weights import MLPWeights, MoEWeights, RankWeights
from splash.spec.model import ModelSpec
from splash.spec.tensors import Division, rank_bytes, rank_params
from tests.conftest import TinyMaker
from tests.tiny import KINDS, load_reference
from tests.unit.loading_kit import loaded_tensors, slot_views

RANKS = (1, 2, 4, 8)
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    **{kind: (kind, {}) for kind in KINDS},
    "deepseek_v3_in_files": ("deepseek_v3", {"shards": 3}),
    "deepseek_v3_two_shared": ("deepseek_v3", {"n_shared_experts": 2}),
    "llama_4_kv_heads": ("llama", {"kv_heads": 4}),
    "llama_8_kv_heads": ("llama", {"kv_heads": 8}),
    "llama_tied": ("llama", {"tie_word_embeddings": True}),
    "llama_bias": ("llama", {"attention_bias": True}),
    "qwen3_moe_some_dense": ("qwen3_moe", {"decoder_sparse_step": 2}),
    "llama_uneven": ("llama", {"intermediate_size": 250, "vocab_size": 509}),
    "glm_uneven": ("glm4_moe_lite", {"experts": 6, "moe_intermediate_size": 50, "vocab_size": 509}),
}

Shards = list[dict[tuple[int, str], torch.Tensor]]


@pytest.fixture(params=MODELS)
def folder(request: pytest.FixtureRequest, tiny: TinyMaker) -> Path:
    kind, options = MODELS[request.param]
    return tiny(kind, **options)


def _load_all(
    folder: Path, ranks: int, dtype: torch.dtype = torch.float32
) -> tuple[ModelSpec, Shards, list[RankWeights]]:
    with open_checkpoint(folder) as checkpoint:
        shards = []
        for shard in range(ranks):
            shards.append(slot_views(checkpoint.spec, ranks, dtype))
            load_shard(checkpoint, ranks=ranks, shard=shard, out=shards[-1])
        held = [load_rank(checkpoint, rank=rank, ranks=ranks, dtype=dtype) for rank in range(ranks)]
        return checkpoint.spec, shards, held


@pytest.mark.parametrize("ranks", RANKS)
def test_head_shards_make_up_the_attention(folder: Path, ranks: int) -> None:
    """Red when a head lands in another shard, `o` is cut by rows, or a shard has another KV group than its heads."""
    spec, shards, _ = _load_all(folder, ranks)
    reference = load_reference(folder).state_dict()
    for layer in range(spec.num_layers):
        prefix = f"model.layers.{layer}.self_attn."
        parts = {name: [shard[layer, name] for shard in shards] for name, _ in spec.shard_tensors(ranks)}
        assert torch.equal(torch.cat(parts["o"], dim=1), reference[f"{prefix}o_proj.weight"])
        if spec.is_mla:
            q = "q_b_proj" if f"{prefix}q_b_proj.weight" in reference else "q_proj"
            assert torch.equal(torch.cat(parts["q"]), reference[f"{prefix}{q}.weight"])
            assert torch.equal(torch.cat(parts["kv_b"]).flatten(0, 1), reference[f"{prefix}kv_b_proj.weight"])
            continue
        every = ranks // spec.kv_groups(ranks)
        for name, step in (("q", 1), ("k", every), ("v", every)):
            assert torch.equal(torch.cat(parts[name][::step]), reference[f"{prefix}{name}_proj.weight"])
            for duplicate in range(ranks):
                assert torch.equal(parts[name][duplicate], parts[name][duplicate // step * step])
            if f"{name}_bias" in parts:
                bias = torch.cat(parts[f"{name}_bias"][::step])
                assert torch.equal(bias, reference[f"{prefix}{name}_proj.bias"])


@pytest.mark.parametrize("ranks", RANKS)
def test_ranks_make_up_the_rest(folder: Path, ranks: int) -> None:
    """Red when a row, an expert or a token is on no rank, on two, or out of order."""
    spec, _, held = _load_all(folder, ranks)
    reference = load_reference(folder).state_dict()
    assert torch.equal(torch.cat([rank.embed for rank in held]), reference["model.embed_tokens.weight"])
    assert torch.equal(torch.cat([rank.head for rank in held]), reference["lm_head.weight"])
    starts = [0]
    for rank in held:
        assert rank.first_token == starts[-1]
        assert (rank.head is rank.embed) == spec.tied_embeddings
        assert torch.equal(rank.final_norm, reference["model.norm.weight"])
        starts.append(starts[-1] + len(rank.embed))
    for layer in range(spec.num_layers):
        of_layer = {
            name.removeprefix(f"model.layers.{layer}."): tensor
            for name, tensor in reference.items()
            if name.startswith(f"model.layers.{layer}.")
        }
        for rank in held:
            weights = rank.layers[layer]
            assert torch.equal(weights.attention_norm, of_layer["input_layernorm.weight"])
            assert torch.equal(weights.ffn_norm, of_layer["post_attention_layernorm.weight"])
            _check_attention(weights.attention, of_layer)
        _check_ffn([rank.layers[layer].ffn for rank in held], of_layer)


def _check_attention(weights: MLAWeights | GQAWeights, reference: dict[str, torch.Tensor]) -> None:
    if isinstance(weights, GQAWeights):
        expected = (
            (weights.q_norm, "q_norm.weight"),
            (weights.k_norm, "k_norm.weight"),
            (weights.o_bias, "o_proj.bias"),
        )
    else:
        names = [
            name for name in ("q_a_proj", "kv_a_proj_with_mqa") if f"self_attn.{name}.weight" in reference
        ]
        assert torch.equal(weights.a, torch.cat([reference[f"self_attn.{name}.weight"] for name in names]))
        expected = ((weights.q_norm, "q_a_layernorm.weight"), (weights.kv_norm, "kv_a_layernorm.weight"))
    for tensor, name in expected:
        assert (tensor is None) == (f"self_attn.{name}" not in reference)
        assert tensor is None or torch.equal(tensor, reference[f"self_attn.{name}"])


def _check_ffn(ranks: list[MLPWeights | MoEWeights], reference: dict[str, torch.Tensor]) -> None:
    dense = [rank for rank in ranks if isinstance(rank, MLPWeights)]
    moe = [rank for rank in ranks if isinstance(rank, MoEWeights)]
    if dense:
        _check_mlp(dense, reference, "mlp")
        return
    assert [rank.first for rank in moe] == [sum(len(r.down) for r in moe[:i]) for i in range(len(moe))]
    assert torch.equal(torch.cat([rank.gate_up for rank in moe]), reference["mlp.experts.gate_up_proj"])
    assert torch.equal(torch.cat([rank.down for rank in moe]), reference["mlp.experts.down_proj"])
    shared = [rank.shared for rank in moe if rank.shared is not None]
    assert bool(shared) == ("mlp.shared_experts.up_proj.weight" in reference)
    if shared:
        _check_mlp(shared, reference, "mlp.shared_experts")
    for rank in moe:
        assert torch.equal(rank.router, reference["mlp.gate.weight"])
        bias = reference.get("mlp.gate.e_score_correction_bias")
        assert (rank.router_bias is None) == (bias is None)
        assert rank.router_bias is None or torch.equal(rank.router_bias, bias)


def _check_mlp(ranks: list[MLPWeights], reference: dict[str, torch.Tensor], prefix: str) -> None:
    halves = [rank.gate_up.unflatten(0, (2, -1)) for rank in ranks]
    assert torch.equal(torch.cat([half[0] for half in halves]), reference[f"{prefix}.gate_proj.weight"])
    assert torch.equal(torch.cat([half[1] for half in halves]), reference[f"{prefix}.up_proj.weight"])
    assert torch.equal(
        torch.cat([rank.down for rank in ranks], dim=1), reference[f"{prefix}.down_proj.weight"]
    )


@pytest.mark.parametrize("ranks", RANKS)
def test_a_rank_holds_what_the_spec_counts(folder: Path, ranks: int) -> None:
    """Red when capacity arithmetic and the loader disagree on what lies on a rank."""
    spec, shards, held = _load_all(folder, ranks)
    for rank, weights in enumerate(held):
        counts = rank_params(spec, rank=rank, ranks=ranks)
        expected = sum(count for division, count in counts.items() if division is not Division.HEADS)
        assert sum(tensor.numel() for tensor in loaded_tensors(weights)) == expected
        num_bytes = sum(tensor.nbytes for tensor in [*loaded_tensors(weights), *shards[rank].values()])
        assert num_bytes == rank_bytes(spec, rank=rank, ranks=ranks, itemsize=4)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("computed", ["float32", "bfloat16"])
def test_a_rank_of_a_hybrid_holds_what_the_spec_counts(tiny: TinyMaker, ranks: int, computed: str) -> None:
    """Red when a recurrent head is on no rank or on two, or what is float32 always (routers, convolutions, decays,
    hyper-connections) is counted or loaded as something else."""
    dtype = DTYPES[computed]
    spec, shards, held = _load_all(tiny("glm5_next", layers=4), ranks, dtype)
    for rank, weights in enumerate(held):
        counts = rank_params(spec, rank=rank, ranks=ranks)
        expected = sum(count for division, count in counts.items() if division is not Division.HEADS)
        assert sum(tensor.numel() for tensor in loaded_tensors(weights)) == expected
        num_bytes = sum(tensor.nbytes for tensor in [*loaded_tensors(weights), *shards[rank].values()])
        assert num_bytes == rank_bytes(spec, rank=rank, ranks=ranks, itemsize=dtype.itemsize)


@pytest.mark.parametrize("stored", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("computed", ["float32", "bfloat16"])
def test_types_are_converted_and_routers_stay_exact(tiny: TinyMaker, stored: str, computed: str) -> None:
    """Red when the type of the checkpoint leaks into the computation, or a router is rounded."""
    folder, dtype = tiny("deepseek_v3", dtype=stored), DTYPES[computed]
    spec, shards, held = _load_all(folder, 2, dtype)
    assert {tensor.dtype for shard in shards for tensor in shard.values()} == {dtype}
    reference = load_reference(folder).state_dict()
    q = torch.cat([shard[1, "q"] for shard in shards])
    assert torch.equal(q, reference["model.layers.1.self_attn.q_b_proj.weight"].to(dtype))
    assert torch.equal(
        held[0].embed, reference["model.embed_tokens.weight"][: spec.vocab_size // 2].to(dtype)
    )
    moe = held[0].layers[1].ffn
    assert isinstance(moe, MoEWeights)
    assert torch.equal(moe.router, reference["model.layers.1.mlp.gate.weight"])
