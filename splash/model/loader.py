"""What one rank reads from a checkpoint: its own slices only, straight into their places in run-time form."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch

from splash.model.attention.weights import GQAWeights, IndexerWeights, MLAWeights, PoolWeights
from splash.model.checkpoint import Checkpoint
from splash.model.weights import HyperWeights, KDAWeights, LayerWeights, MLPWeights, MoEWeights, RankWeights
from splash.spec.model import DenseSpec, GQASpec, IndexerSpec, KDASpec, MLASpec, ModelSpec, MoESpec
from splash.spec.tensors import layer_prefix, portion

DTYPES: Mapping[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
    "uint8": torch.uint8,
}


def load_shard(
    checkpoint: Checkpoint, *, ranks: int, shard: int, out: Mapping[tuple[int, str], torch.Tensor]
) -> None:
    """Fill `out`, keyed by (layer, name), with head shard `shard` of `ranks`.

    Names and shapes are those of `ModelSpec.shard_tensors`; the tensors (views of a slot) decide the type.
    """
    spec = checkpoint.spec
    shapes = dict(spec.shard_tensors(ranks))
    for layer in spec.attention_layers:
        for name, part in _shard_parts(checkpoint, spec, layer, ranks=ranks, shard=shard):
            out[layer, name].copy_(part.reshape(shapes[name]) if name == "kv_b" else part)


def load_rank(
    checkpoint: Checkpoint,
    *,
    rank: int,
    ranks: int,
    dtype: torch.dtype,
    device: str = "cpu",
    loaded: Callable[[], None] = lambda: None,
) -> RankWeights:
    """Everything that `rank` of `ranks` holds in every layout, in `dtype` (routers in float32).

    `loaded` is called after each layer, the same number of times on all ranks.
    """
    reader = _Reader(checkpoint, rank=rank, ranks=ranks, dtype=dtype, device=device)
    spec = checkpoint.spec
    tokens = portion(spec.vocab_size, rank, ranks)
    embed = reader.rows("model.embed_tokens.weight", tokens)
    layers = []
    for layer in range(spec.num_layers):
        layers.append(_layer(reader, spec, layer))
        loaded()
    return RankWeights(
        embed=embed,
        head=embed if spec.tied_embeddings else reader.rows("lm_head.weight", tokens),
        first_token=tokens.start,
        final_norm=reader.whole("model.norm.weight"),
        layers=tuple(layers),
    )


def _shard_parts(
    checkpoint: Checkpoint, spec: ModelSpec, layer: int, *, ranks: int, shard: int
) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, view of the mapped file) of each tensor of one layer's shard; of `o` the columns."""
    att, prefix = spec.attention, f"{layer_prefix(layer)}self_attn."
    heads = portion(att.num_heads, shard, ranks)
    if isinstance(att, MLASpec):
        q_name = "q_proj" if att.q_lora_rank is None else "q_b_proj"
        q_rows = _scaled(heads, att.nope_dim + att.rope_dim)
        yield "q", checkpoint.slice(f"{prefix}{q_name}.weight", rows=q_rows)
        kv_rows = _scaled(heads, att.nope_dim + att.v_dim)
        yield "kv_b", checkpoint.slice(f"{prefix}kv_b_proj.weight", rows=kv_rows)
        yield "o", checkpoint.slice(f"{prefix}o_proj.weight", columns=_scaled(heads, att.v_dim))
        return
    groups = spec.kv_groups(ranks)
    kv_heads = portion(att.num_kv_heads, shard * groups // ranks, groups)
    rows = {
        "q": _scaled(heads, att.head_dim),
        "k": _scaled(kv_heads, att.head_dim),
        "v": _scaled(kv_heads, att.head_dim),
    }
    for name, part in rows.items():
        yield name, checkpoint.slice(f"{prefix}{name}_proj.weight", rows=part)
    yield "o", checkpoint.slice(f"{prefix}o_proj.weight", columns=rows["q"])
    if att.bias:
        for name, part in rows.items():
            yield f"{name}_bias", checkpoint.slice(f"{prefix}{name}_proj.bias", rows=part)


def _scaled(heads: range, width: int) -> range:
    """The features of a run of heads of `width` each."""
    return range(heads.start * width, heads.stop * width)


class _Reader:
    """Copies slices of the mapped checkpoint into new tensors of one type."""

    def __init__(
        self, checkpoint: Checkpoint, *, rank: int, ranks: int, dtype: torch.dtype, device: str
    ) -> None:
        self.checkpoint = checkpoint
        self.rank = rank
        self.ranks = ranks
        self.dtype = dtype
        self.device = device

    def empty(self, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=self.dtype, device=self.device)

    def whole(self, name: str, *, dtype: torch.dtype | None = None) -> torch.Tensor:
        stored = self.checkpoint.slice(name)
        out = torch.empty(stored.shape, dtype=dtype or self.dtype, device=self.device)
        return out.copy_(stored)

    def rows(self, name: str, rows: range, *, dtype: torch.dtype | None = None) -> torch.Tensor:
        stored = self.checkpoint.slice(name, rows=rows)
        return torch.empty(stored.shape, dtype=dtype or self.dtype, device=self.device).copy_(stored)

    def stack(self, *names: str) -> torch.Tensor:
        """Whole matrices one below the other."""
        parts = [self.checkpoint.slice(name) for name in names]
        out = self.empty(sum(len(part) for part in parts), parts[0].shape[1])
        for place, part in zip(out.split([len(part) for part in parts]), parts, strict=True):
            place.copy_(part)
        return out


def _layer(reader: _Reader, spec: ModelSpec, layer: int) -> LayerWeights:
    prefix, ffn = layer_prefix(layer), spec.ffns[layer]
    return LayerWeights(
        attention_norm=reader.whole(f"{prefix}input_layernorm.weight"),
        attention=_mixer(reader, spec, layer),
        ffn_norm=reader.whole(f"{prefix}post_attention_layernorm.weight"),
        ffn=_moe(reader, spec.hidden_size, ffn, f"{prefix}mlp.")
        if isinstance(ffn, MoESpec)
        else _mlp(reader, spec.hidden_size, ffn, f"{prefix}mlp."),
        hyper=None if spec.hyper is None else (_hyper(reader, prefix, "attn"), _hyper(reader, prefix, "ffn")),
    )


def _mixer(reader: _Reader, spec: ModelSpec, layer: int) -> MLAWeights | GQAWeights | KDAWeights:
    prefix = f"{layer_prefix(layer)}self_attn."
    if spec.kda is not None and spec.is_kda(layer):
        return _kda(reader, spec.kda, spec.hidden_size, prefix)
    return _attention(reader, spec, layer)


def _kda(reader: _Reader, kda: KDASpec, hidden: int, prefix: str) -> KDAWeights:
    """This rank's heads."""
    heads = portion(kda.num_heads, reader.rank, reader.ranks)
    rows = _scaled(heads, kda.head_dim)
    parts = [(f"{name}_proj", rows) for name in "qkv"] + [("b_proj", heads)]
    parts += [(name, range(kda.head_dim)) for name in ("f_a_proj", "g_a_proj")]
    project = reader.empty(sum(len(part) for _, part in parts), hidden)
    for place, (name, part) in zip(project.split([len(part) for _, part in parts]), parts, strict=True):
        place.copy_(reader.checkpoint.slice(f"{prefix}{name}.weight", rows=part))
    taps = [reader.rows(f"{prefix}{name}_conv1d.weight", rows, dtype=torch.float32) for name in "qkv"]
    o = reader.checkpoint.slice(f"{prefix}o_proj.weight", columns=rows)
    return KDAWeights(
        project=project,
        f_b=reader.rows(f"{prefix}f_b_proj.weight", rows),
        g_b=reader.rows(f"{prefix}g_b_proj.weight", rows),
        conv=torch.cat(taps).squeeze(1).t().contiguous(),
        decay=reader.rows(f"{prefix}A_log", heads, dtype=torch.float32).exp_(),
        dt_bias=reader.rows(f"{prefix}dt_bias", rows, dtype=torch.float32),
        o_norm=reader.whole(f"{prefix}o_norm.weight", dtype=torch.float32),
        o=reader.empty(*o.shape).copy_(o),
    )


def _hyper(reader: _Reader, prefix: str, block: str) -> HyperWeights:
    fn, base, scale = (
        reader.whole(f"{prefix}hc_{block}_{name}", dtype=torch.float32) for name in ("fn", "base", "scale")
    )
    return HyperWeights(fn, base, scale)


def _attention(reader: _Reader, spec: ModelSpec, layer: int) -> MLAWeights | GQAWeights:
    """What of the attention every rank has whole."""
    att, prefix = spec.attention, f"{layer_prefix(layer)}self_attn."
    if isinstance(att, GQASpec):
        return GQAWeights(
            q_norm=reader.whole(f"{prefix}q_norm.weight") if att.qk_norm else None,
            k_norm=reader.whole(f"{prefix}k_norm.weight") if att.qk_norm else None,
            o_bias=reader.whole(f"{prefix}o_proj.bias") if att.bias else None,
        )
    indexer = spec.indexer if spec.has_indexer(layer) else None
    kv_a = f"{prefix}kv_a_proj_with_mqa.weight"
    kv_norm = reader.whole(f"{prefix}kv_a_layernorm.weight")
    if att.q_lora_rank is None:
        return MLAWeights(a=reader.whole(kv_a), q_norm=None, kv_norm=kv_norm)
    return MLAWeights(
        a=reader.stack(f"{prefix}q_a_proj.weight", kv_a),
        q_norm=reader.whole(f"{prefix}q_a_layernorm.weight"),
        kv_norm=kv_norm,
        indexer=None if indexer is None else _indexer(reader, indexer, f"{prefix}indexer."),
    )


def _indexer(reader: _Reader, indexer: IndexerSpec, prefix: str) -> IndexerWeights:
    pool = None
    if indexer.pool > 1:
        gate, ape = (reader.whole(f"{prefix}index_kpool_compress_{name}") for name in ("gate", "ape"))
        pool = PoolWeights(gate, ape)
    return IndexerWeights(
        wq_b=reader.whole(f"{prefix}wq_b.weight"),
        wk=reader.whole(f"{prefix}wk.weight"),
        k_norm_weight=reader.whole(f"{prefix}k_norm.weight"),
        k_norm_bias=reader.whole(f"{prefix}k_norm.bias"),
        heads=reader.whole(f"{prefix}weights_proj.weight"),
        pool=pool,
    )


def _mlp(reader: _Reader, hidden: int, ffn: DenseSpec, prefix: str) -> MLPWeights:
    """This rank's rows of a gated MLP."""
    part = portion(ffn.ffn, reader.rank, reader.ranks)
    weights = MLPWeights(gate_up=reader.empty(2 * len(part), hidden), down=reader.empty(hidden, len(part)))
    _fill_mlp(reader.checkpoint, prefix, part, gate_up=weights.gate_up, down=weights.down)
    return weights


def _moe(reader: _Reader, hidden: int, moe: MoESpec, prefix: str) -> MoEWeights:
    experts = portion(moe.num_experts, reader.rank, reader.ranks)
    gate_up = reader.empty(len(experts), 2 * moe.expert_ffn, hidden)
    down = reader.empty(len(experts), hidden, moe.expert_ffn)
    for place, expert in enumerate(experts):
        _fill_mlp(
            reader.checkpoint,
            f"{prefix}experts.{expert}.",
            range(moe.expert_ffn),
            gate_up=gate_up[place],
            down=down[place],
        )
    bias = f"{prefix}gate.e_score_correction_bias"
    shared = DenseSpec(moe.num_shared * moe.expert_ffn)
    return MoEWeights(
        router=reader.whole(f"{prefix}gate.weight", dtype=torch.float32),
        router_bias=reader.whole(bias, dtype=torch.float32) if moe.correction_bias else None,
        first=experts.start,
        gate_up=gate_up,
        down=down,
        shared=_mlp(reader, hidden, shared, f"{prefix}shared_experts.") if moe.num_shared else None,
    )


def _fill_mlp(
    checkpoint: Checkpoint, prefix: str, part: range, *, gate_up: torch.Tensor, down: torch.Tensor
) -> None:
    """Copy the rows `part` of gate and up, and the columns `part` of down, into their places."""
    gate, up = gate_up.split(len(part)) if len(part) else (gate_up, gate_up)
    gate.copy_(checkpoint.slice(f"{prefix}gate_proj.weight", rows=part))
    up.copy_(checkpoint.slice(f"{prefix}up_proj.weight", rows=part))
    down.copy_(checkpoint.slice(f"{prefix}down_proj.weight", columns=part))
