"""The tensors of a model by their names in a checkpoint: shapes, how each is divided over ranks, counts.

Names are those that transformers writes (`model.` for the decoder, experts one by one); a multimodal checkpoint
has `model.language_model.` instead, which `model.checkpoint` takes off.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from math import prod

from splash.spec.model import (
    DenseSpec,
    GQASpec,
    HyperSpec,
    IndexerSpec,
    KDASpec,
    MLASpec,
    ModelSpec,
    MoESpec,
)


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
    STATE_ROWS = "state rows"
    """By recurrent head, in every layout: the head's rows. Never moves."""
    STATE_COLUMNS = "state columns"


class Part(Enum):
    """What a tensor is for, as memory sums name it."""

    VOCABULARY = "vocabulary"
    NORMS = "norms"
    ATTENTION = "attention"
    """The switchable weights."""
    LATENT = "attention, replicated"
    """Down-projections and biases that every rank has."""
    INDEXER = "indexer"
    KDA = "KDA"
    HYPER = "hyper-connections"
    ROUTER = "router"
    EXPERTS = "routed experts"
    SHARED = "shared experts"
    DENSE = "dense MLPs"


class Precision(Enum):
    """Which type a tensor may have in memory."""

    LINEAR = "linear"
    """A matrix that quantised releases quantise."""
    PLAIN = "plain"
    """The computing type."""
    EXACT = "exact"
    """float32 always."""


@dataclass(frozen=True, slots=True)
class LogicalTensor:
    """One tensor as a checkpoint has it."""

    name: str
    shape: tuple[int, ...]
    division: Division
    part: Part
    precision: Precision = Precision.LINEAR
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
    yield from _outside(spec)
    for layer in range(spec.num_layers):
        yield from layer_tensors(spec, layer)


def _outside(spec: ModelSpec) -> Iterator[LogicalTensor]:
    """What no layer has."""
    vocabulary = (spec.vocab_size, spec.hidden_size)
    names = (
        ("model.embed_tokens.weight",)
        if spec.tied_embeddings
        else ("model.embed_tokens.weight", "lm_head.weight")
    )
    for name in names:
        yield LogicalTensor(name, vocabulary, Division.VOCABULARY, Part.VOCABULARY, Precision.PLAIN)
    yield _norm("model.norm.weight", spec.hidden_size)


def counted_tensors(spec: ModelSpec) -> Iterator[tuple[LogicalTensor, int]]:
    """`model_tensors`, but one for all layers that have the same, and how many those are: quick to sum over."""
    yield from ((tensor, 1) for tensor in _outside(spec))
    alike: defaultdict[Hashable, list[int]] = defaultdict(list)
    for layer in range(spec.num_layers):
        alike[spec.ffns[layer], spec.is_kda(layer), spec.has_indexer(layer)].append(layer)
    for layers in alike.values():
        yield from ((tensor, len(layers)) for tensor in layer_tensors(spec, layers[0]))


def layer_tensors(spec: ModelSpec, layer: int) -> Iterator[LogicalTensor]:
    """The tensors of one decoder layer."""
    prefix, hidden = layer_prefix(layer), spec.hidden_size
    for norm in ("input_layernorm", "post_attention_layernorm"):
        yield _norm(f"{prefix}{norm}.weight", hidden)
    if spec.hyper is not None:
        yield from _hyper(spec.hyper, hidden, prefix)
    yield from _mixer(spec, layer, f"{prefix}self_attn.")
    ffn = spec.ffns[layer]
    if isinstance(ffn, MoESpec):
        yield from _moe(ffn, hidden, f"{prefix}mlp.")
    else:
        yield from _mlp(ffn, hidden, f"{prefix}mlp.", Part.DENSE)


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
        counts[tensor.division] += prod(held_shape(spec, tensor, rank=rank, ranks=ranks))
    return counts


def rank_bytes(spec: ModelSpec, *, rank: int, ranks: int, itemsize: int) -> int:
    """Bytes of the weights on `rank` with its own head shard alone, in a type of `itemsize` bytes, without padding."""
    return sum(
        prod(held_shape(spec, tensor, rank=rank, ranks=ranks))
        * (4 if tensor.precision is Precision.EXACT else itemsize)
        for tensor in model_tensors(spec)
    )


def held_shape(spec: ModelSpec, tensor: LogicalTensor, *, rank: int, ranks: int) -> tuple[int, ...]:
    """The shape of what `rank` has of `tensor` in every layout: its own head shard of HEADS; 0 rows if nothing.

    Of GQA's k and v it is the whole KV group of the shard.
    """
    first, *rest = tensor.shape
    match tensor.division:
        case Division.NONE | Division.ROUTER:
            return tensor.shape
        case Division.FFN_ROWS | Division.VOCABULARY:
            return (len(portion(first, rank, ranks)), *rest)
        case Division.FFN_COLUMNS:
            return (first, len(portion(rest[0], rank, ranks)))
        case Division.STATE_ROWS:
            return (first // ranks, *rest)
        case Division.STATE_COLUMNS:
            return (first, rest[0] // ranks)
        case Division.EXPERT:
            experts = next(ffn.num_experts for ffn in spec.ffns if isinstance(ffn, MoESpec))
            return tensor.shape if tensor.expert in portion(experts, rank, ranks) else (0, *rest)
        case Division.HEADS:
            return _shard_shape(spec, tensor, ranks)


def _shard_shape(spec: ModelSpec, tensor: LogicalTensor, ranks: int) -> tuple[int, ...]:
    """One head shard of a switchable tensor, as the checkpoint has it (`o` is not transposed)."""
    first, *rest = tensor.shape
    if tensor.name.endswith(".o_proj.weight"):
        return (first, rest[0] // ranks)
    if isinstance(spec.attention, GQASpec) and not tensor.name.split(".")[-2].startswith("q"):
        return (first // spec.kv_groups(ranks), *rest)
    return (first // ranks, *rest)


_VISION = ("model.visual.", "visual.", "model.vision_tower.", "vision_tower.", "multi_modal_projector.")
_HARMLESS = "rotary_emb.inv_freq"


def skipped_tensor(spec: ModelSpec, name: str) -> str | None:
    """Why a checkpoint may have the tensor `name` though it is not computed; None if it has no business there."""
    if name.startswith(_VISION):
        return "vision"
    if name.endswith(_HARMLESS):
        return "rotary frequencies"
    layers = range(spec.num_layers, spec.num_layers + spec.mtp_layers)
    if any(name.startswith(layer_prefix(layer)) for layer in layers):
        return "multi-token prediction"
    return None


def _norm(name: str, width: int) -> LogicalTensor:
    return LogicalTensor(name, (width,), Division.NONE, Part.NORMS, Precision.PLAIN)


def _mixer(spec: ModelSpec, layer: int, prefix: str) -> Iterator[LogicalTensor]:
    """Attention with its indexer, or what stands in its place."""
    attention, hidden = spec.attention, spec.hidden_size
    if spec.kda is not None and spec.is_kda(layer):
        yield from _kda(spec.kda, hidden, prefix)
        return
    if isinstance(attention, GQASpec):
        yield from _gqa(attention, hidden, prefix)
        return
    yield from _mla(attention, hidden, prefix)
    if spec.indexer is not None and attention.q_lora_rank is not None and spec.has_indexer(layer):
        yield from _indexer(spec.indexer, attention.q_lora_rank, hidden, f"{prefix}indexer.")


def _mla(att: MLASpec, hidden: int, prefix: str) -> Iterator[LogicalTensor]:
    def shard(name: str, rows: int, columns: int) -> LogicalTensor:
        return LogicalTensor(f"{prefix}{name}.weight", (rows, columns), Division.HEADS, Part.ATTENTION)

    def whole(name: str, rows: int) -> LogicalTensor:
        return LogicalTensor(f"{prefix}{name}.weight", (rows, hidden), Division.NONE, Part.LATENT)

    q_rows = att.num_heads * (att.nope_dim + att.rope_dim)
    if att.q_lora_rank is None:
        yield shard("q_proj", q_rows, hidden)
    else:
        yield whole("q_a_proj", att.q_lora_rank)
        yield _norm(f"{prefix}q_a_layernorm.weight", att.q_lora_rank)
        yield shard("q_b_proj", q_rows, att.q_lora_rank)
    yield whole("kv_a_proj_with_mqa", att.latent_dim)
    yield _norm(f"{prefix}kv_a_layernorm.weight", att.kv_lora_rank)
    yield shard("kv_b_proj", att.num_heads * (att.nope_dim + att.v_dim), att.kv_lora_rank)
    yield shard("o_proj", hidden, att.num_heads * att.v_dim)


def _gqa(att: GQASpec, hidden: int, prefix: str) -> Iterator[LogicalTensor]:
    q_rows, kv_rows = att.num_heads * att.head_dim, att.num_kv_heads * att.head_dim
    for name, rows in (("q", q_rows), ("k", kv_rows), ("v", kv_rows)):
        yield LogicalTensor(f"{prefix}{name}_proj.weight", (rows, hidden), Division.HEADS, Part.ATTENTION)
        if att.bias:
            yield LogicalTensor(
                f"{prefix}{name}_proj.bias", (rows,), Division.HEADS, Part.ATTENTION, Precision.PLAIN
            )
    yield LogicalTensor(f"{prefix}o_proj.weight", (hidden, q_rows), Division.HEADS, Part.ATTENTION)
    if att.bias:
        yield LogicalTensor(f"{prefix}o_proj.bias", (hidden,), Division.NONE, Part.LATENT, Precision.PLAIN)
    if att.qk_norm:
        yield _norm(f"{prefix}q_norm.weight", att.head_dim)
        yield _norm(f"{prefix}k_norm.weight", att.head_dim)


def _indexer(indexer: IndexerSpec, q_lora_rank: int, hidden: int, prefix: str) -> Iterator[LogicalTensor]:
    """Quantised releases keep what scores and pools are weighted with, and the norm (MODELS §1.1)."""
    shapes: tuple[tuple[str, tuple[int, ...], Precision], ...] = (
        ("wq_b.weight", (indexer.num_heads * indexer.head_dim, q_lora_rank), Precision.LINEAR),
        ("wk.weight", (indexer.head_dim, hidden), Precision.LINEAR),
        ("weights_proj.weight", (indexer.num_heads, hidden), Precision.PLAIN),
        ("k_norm.weight", (indexer.head_dim,), Precision.PLAIN),
        ("k_norm.bias", (indexer.head_dim,), Precision.PLAIN),
    )
    if indexer.pool > 1:
        shapes += (
            ("index_kpool_compress_ape", (indexer.pool, indexer.head_dim), Precision.PLAIN),
            ("index_kpool_compress_gate", (indexer.head_dim, hidden), Precision.PLAIN),
        )
    for name, shape, precision in shapes:
        yield LogicalTensor(prefix + name, shape, Division.NONE, Part.INDEXER, precision)


def _kda(kda: KDASpec, hidden: int, prefix: str) -> Iterator[LogicalTensor]:
    def tensor(
        name: str, shape: tuple[int, ...], division: Division, precision: Precision = Precision.LINEAR
    ) -> LogicalTensor:
        return LogicalTensor(prefix + name, shape, division, Part.KDA, precision)

    rows, width = Division.STATE_ROWS, kda.num_heads * kda.head_dim
    for name in "qkv":
        yield tensor(f"{name}_proj.weight", (width, hidden), rows)
        yield tensor(f"{name}_conv1d.weight", (width, 1, kda.conv_kernel), rows, Precision.EXACT)
    for name in "fg":
        yield tensor(f"{name}_a_proj.weight", (kda.head_dim, hidden), Division.NONE)
        yield tensor(f"{name}_b_proj.weight", (width, kda.head_dim), rows)
    yield tensor("b_proj.weight", (kda.num_heads, hidden), rows)
    yield tensor("A_log", (kda.num_heads,), rows, Precision.EXACT)
    yield tensor("dt_bias", (width,), rows, Precision.EXACT)
    yield tensor("o_norm.weight", (kda.head_dim,), Division.NONE, Precision.EXACT)
    yield tensor("o_proj.weight", (hidden, width), Division.STATE_COLUMNS)


def _hyper(hyper: HyperSpec, hidden: int, prefix: str) -> Iterator[LogicalTensor]:
    """Weights of collapsing, expanding and mixing: streams + streams + streams ** 2 outputs, with 3 scales."""
    width = hyper.streams * (hyper.streams + 2)
    for block in ("attn", "ffn"):
        for name, shape, precision in (
            ("fn", (width, hyper.streams * hidden), Precision.EXACT),
            ("base", (width,), Precision.EXACT),
            ("scale", (3,), Precision.EXACT),
        ):
            yield LogicalTensor(f"{prefix}hc_{block}_{name}", shape, Division.NONE, Part.HYPER, precision)


def _mlp(ffn: DenseSpec, hidden: int, prefix: str, part: Part) -> Iterator[LogicalTensor]:
    yield LogicalTensor(f"{prefix}gate_proj.weight", (ffn.ffn, hidden), Division.FFN_ROWS, part)
    yield LogicalTensor(f"{prefix}up_proj.weight", (ffn.ffn, hidden), Division.FFN_ROWS, part)
    yield LogicalTensor(f"{prefix}down_proj.weight", (hidden, ffn.ffn), Division.FFN_COLUMNS, part)


def _moe(moe: MoESpec, hidden: int, prefix: str) -> Iterator[LogicalTensor]:
    router = (Division.ROUTER, Part.ROUTER, Precision.EXACT)
    yield LogicalTensor(f"{prefix}gate.weight", (moe.num_experts, hidden), *router)
    if moe.correction_bias:
        yield LogicalTensor(f"{prefix}gate.e_score_correction_bias", (moe.num_experts,), *router)
    if moe.num_shared:
        shared = DenseSpec(moe.num_shared * moe.expert_ffn)
        yield from _mlp(shared, hidden, f"{prefix}shared_experts.", Part.SHARED)
    for expert in range(moe.num_experts):
        for tensor in _mlp(DenseSpec(moe.expert_ffn), hidden, f"{prefix}experts.{expert}.", Part.EXPERTS):
            yield replace(tensor, division=Division.EXPERT, expert=expert)
