"""The tensors of a model by their names in a checkpoint: shapes, how each is divided over ranks, counts.

Names are those that transformers writes (`model.` for the decoder, experts one by one).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from math import prod

from splash.spec.model import DenseSpec, GQASpec, MLASpec, ModelSpec, MoESpec


class Division(Enum):
    """What a tensor is divided by over ranks, in every layout."""

    HEADS = "heads"
    """Switchable attention weights: head shards, which a layout may gather on one rank (`shard_tensors`)."""
    NONE = "none"
    """Every rank has it whole."""
    ROUTER = "router"
    """Every rank has it whole, in float32."""
    FFN_ROWS = "ffn rows"
    FFN_COLUMNS = "ffn columns"
    EXPERT = "expert"
    VOCABULARY = "vocabulary"


@dataclass(frozen=True, slots=True)
class LogicalTensor:
    """One tensor as a checkpoint has it."""

    name: str
    shape: tuple[int, ...]
    division: Division
    expert: int | None = None
    """Which expert it belongs to, for `Division.EXPERT`."""

    @property
    def num_params(self) -> int:
        return prod(self.shape)


def portion(total: int, rank: int, ranks: int) -> range:
    """The part of `total` things that `rank` has: contiguous, sizes differ by at most one, order of ranks."""
    return range(total * rank // ranks, total * (rank + 1) // ranks)


def model_tensors(spec: ModelSpec) -> Iterator[LogicalTensor]:
    """Every tensor that computing `spec` needs; with tied embeddings there is no lm_head."""
    vocabulary = (spec.vocab_size, spec.hidden_size)
    yield LogicalTensor("model.embed_tokens.weight", vocabulary, Division.VOCABULARY)
    if not spec.tied_embeddings:
        yield LogicalTensor("lm_head.weight", vocabulary, Division.VOCABULARY)
    yield LogicalTensor("model.norm.weight", (spec.hidden_size,), Division.NONE)
    for layer in range(spec.num_layers):
        yield from layer_tensors(spec, layer)


def layer_tensors(spec: ModelSpec, layer: int) -> Iterator[LogicalTensor]:
    """The tensors of one decoder layer."""
    prefix = layer_prefix(layer)
    for norm in ("input_layernorm", "post_attention_layernorm"):
        yield LogicalTensor(f"{prefix}{norm}.weight", (spec.hidden_size,), Division.NONE)
    attention, ffn = spec.attention, spec.ffns[layer]
    if isinstance(attention, MLASpec):
        yield from _mla(attention, spec.hidden_size, f"{prefix}self_attn.")
    else:
        yield from _gqa(attention, spec.hidden_size, f"{prefix}self_attn.")
    if isinstance(ffn, MoESpec):
        yield from _moe(ffn, spec.hidden_size, f"{prefix}mlp.")
    else:
        yield from _mlp(ffn, spec.hidden_size, f"{prefix}mlp.")


def layer_prefix(layer: int) -> str:
    return f"model.layers.{layer}."


def num_params(spec: ModelSpec) -> int:
    """Parameters of the whole model, each counted once; tied embeddings are one matrix."""
    return sum(tensor.num_params for tensor in model_tensors(spec))


def rank_params(spec: ModelSpec, *, rank: int, ranks: int) -> dict[Division, int]:
    """Parameters that `rank` holds, by division; HEADS is one head shard, the rank's own.

    A shard of GQA counts k and v of its whole KV group, as `ModelSpec.shard_tensors` has them.
    """
    counts = dict.fromkeys(Division, 0)
    for tensor in model_tensors(spec):
        if tensor.division is not Division.HEADS:
            counts[tensor.division] += _held(spec, tensor, rank=rank, ranks=ranks)
    shard = sum(prod(shape) for _, shape in spec.shard_tensors(ranks))
    counts[Division.HEADS] = shard * spec.num_layers
    return counts


def rank_bytes(spec: ModelSpec, *, rank: int, ranks: int, itemsize: int) -> int:
    """Bytes of the weights on `rank` with its own head shard alone; routers are float32, padding is not counted."""
    counts = rank_params(spec, rank=rank, ranks=ranks)
    return sum(count * (4 if division is Division.ROUTER else itemsize) for division, count in counts.items())


def _held(spec: ModelSpec, tensor: LogicalTensor, *, rank: int, ranks: int) -> int:
    """Parameters of one tensor that is not switchable on one rank."""
    match tensor.division:
        case Division.FFN_ROWS | Division.VOCABULARY:
            rows, columns = tensor.shape
            return len(portion(rows, rank, ranks)) * columns
        case Division.FFN_COLUMNS:
            rows, columns = tensor.shape
            return rows * len(portion(columns, rank, ranks))
        case Division.EXPERT:
            experts = next(ffn.num_experts for ffn in spec.ffns if isinstance(ffn, MoESpec))
            return tensor.num_params if tensor.expert in portion(experts, rank, ranks) else 0
    return tensor.num_params


def _mla(att: MLASpec, hidden: int, prefix: str) -> Iterator[LogicalTensor]:
    q_rows = att.num_heads * (att.nope_dim + att.rope_dim)
    if att.q_lora_rank is None:
        yield LogicalTensor(f"{prefix}q_proj.weight", (q_rows, hidden), Division.HEADS)
    else:
        yield LogicalTensor(f"{prefix}q_a_proj.weight", (att.q_lora_rank, hidden), Division.NONE)
        yield LogicalTensor(f"{prefix}q_a_layernorm.weight", (att.q_lora_rank,), Division.NONE)
        yield LogicalTensor(f"{prefix}q_b_proj.weight", (q_rows, att.q_lora_rank), Division.HEADS)
    yield LogicalTensor(f"{prefix}kv_a_proj_with_mqa.weight", (att.latent_dim, hidden), Division.NONE)
    yield LogicalTensor(f"{prefix}kv_a_layernorm.weight", (att.kv_lora_rank,), Division.NONE)
    kv_rows = att.num_heads * (att.nope_dim + att.v_dim)
    yield LogicalTensor(f"{prefix}kv_b_proj.weight", (kv_rows, att.kv_lora_rank), Division.HEADS)
    yield LogicalTensor(f"{prefix}o_proj.weight", (hidden, att.num_heads * att.v_dim), Division.HEADS)


def _gqa(att: GQASpec, hidden: int, prefix: str) -> Iterator[LogicalTensor]:
    q_rows, kv_rows = att.num_heads * att.head_dim, att.num_kv_heads * att.head_dim
    for name, rows in (("q", q_rows), ("k", kv_rows), ("v", kv_rows)):
        yield LogicalTensor(f"{prefix}{name}_proj.weight", (rows, hidden), Division.HEADS)
        if att.bias:
            yield LogicalTensor(f"{prefix}{name}_proj.bias", (rows,), Division.HEADS)
    yield LogicalTensor(f"{prefix}o_proj.weight", (hidden, q_rows), Division.HEADS)
    if att.bias:
        yield LogicalTensor(f"{prefix}o_proj.bias", (hidden,), Division.NONE)
    if att.qk_norm:
        yield LogicalTensor(f"{prefix}q_norm.weight", (att.head_dim,), Division.NONE)
        yield LogicalTensor(f"{prefix}k_norm.weight", (att.head_dim,), Division.NONE)


def _mlp(ffn: DenseSpec, hidden: int, prefix: str) -> Iterator[LogicalTensor]:
    yield LogicalTensor(f"{prefix}gate_proj.weight", (ffn.ffn, hidden), Division.FFN_ROWS)
    yield LogicalTensor(f"{prefix}up_proj.weight", (ffn.ffn, hidden), Division.FFN_ROWS)
    yield LogicalTensor(f"{prefix}down_proj.weight", (hidden, ffn.ffn), Division.FFN_COLUMNS)


def _moe(moe: MoESpec, hidden: int, prefix: str) -> Iterator[LogicalTensor]:
    yield LogicalTensor(f"{prefix}gate.weight", (moe.num_experts, hidden), Division.ROUTER)
    if moe.correction_bias:
        yield LogicalTensor(f"{prefix}gate.e_score_correction_bias", (moe.num_experts,), Division.ROUTER)
    if moe.num_shared:
        yield from _mlp(DenseSpec(moe.num_shared * moe.expert_ffn), hidden, f"{prefix}shared_experts.")
    for expert in range(moe.num_experts):
        for tensor in _mlp(DenseSpec(moe.expert_ffn), hidden, f"{prefix}experts.{expert}."):
            yield LogicalTensor(tensor.name, tensor.shape, Division.EXPERT, expert)
