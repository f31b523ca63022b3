"""A model as numbers: attention, feed-forward layers, rope, and what follows from them.

Symbols as in DESIGN and REFERENCE: T ranks, G KV groups, H heads. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from splash.core.errors import ConfigError

ITEMSIZE = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8}


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary embedding of `dim` dimensions; dim 0 is no rope.

    `interleaved`: pairs are (0,1), (2,3), ... (MLA models); otherwise (i, i + dim/2) (GQA models).
    yarn: `mscale`, `mscale_all_dim`, `beta_fast`, `beta_slow`, `factor`, `original_max_position`, `truncate`.
    llama3: `factor`, `low_freq_factor`, `high_freq_factor`, `original_max_position`.
    """

    kind: Literal["default", "linear", "yarn", "llama3"]
    dim: int
    theta: float
    interleaved: bool
    factor: float = 1.0
    original_max_position: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    attention_factor: float | None = None
    """What cos and sin are multiplied by, always set for yarn; None is 1."""
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    truncate: bool = True
    """yarn: the bounds of its ramp are rounded outwards to whole dimensions."""


@dataclass(frozen=True, slots=True)
class MLASpec:
    """Multi-head latent attention: one KV group; the cache holds latent and rotated rope key."""

    num_heads: int
    q_lora_rank: int | None
    """None: q_proj goes straight from the hidden state."""
    kv_lora_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    latent_eps: float
    """Epsilon of the norms of the query and KV latents."""
    softmax_scale: float

    @property
    def latent_dim(self) -> int:
        """Elements cached per token and layer."""
        return self.kv_lora_rank + self.rope_dim

    @property
    def down_dim(self) -> int:
        """Elements of a row's down-projection: what queries are made of, if they have a latent, and the cached ones."""
        return (self.q_lora_rank or 0) + self.latent_dim

    def down_part(self, ranks: int) -> int:
        """Of `down_dim`, what each of `ranks` computes where they divide it (ADR 0011); 0: it has no equal parts."""
        return 0 if ranks == 1 or self.down_dim % ranks else self.down_dim // ranks


@dataclass(frozen=True, slots=True)
class GQASpec:
    """Grouped-query attention."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    softmax_scale: float
    qk_norm: bool = False
    """RMS norm over head_dim on q and k before rope (Qwen3)."""
    bias: bool = False
    """Biases on q, k, v (and o where the checkpoint has one)."""


@dataclass(frozen=True, slots=True)
class IndexerSpec:
    """DSA's lightning indexer: scores every cached token and keeps `top_k` of them for all heads of a row.

    Its weights and its one key per token are replicated like `kv_a`; a layer without an indexer of its own reuses
    the selection of the layer before it (`ModelSpec.indexed`).
    """

    num_heads: int
    head_dim: int
    top_k: int
    """Tokens that a row attends over."""
    rope_dim: int
    """The first dimensions of query and key that are rotated; 0 is none."""
    interleaved: bool
    """Pairing of the rope: GLM (0,1), (2,3), ...; DeepSeek-V3.2 (i, i + dim/2)."""
    pool: int = 1
    """Consecutive tokens that make one key (GLM-5.3-Flash: 4); the unfinished pool is always attended."""

    @property
    def top_keys(self) -> int:
        """Keys that a row chooses: each stands for `pool` tokens."""
        return self.top_k // self.pool


@dataclass(frozen=True, slots=True)
class KDASpec:
    """Kimi delta attention: a recurrent state per head instead of a cache; sharded by head in every layout."""

    num_heads: int
    head_dim: int
    conv_kernel: int
    gate_lower_bound: float
    """What the sigmoid of the decay gate is multiplied by (-5), not a clamp."""


@dataclass(frozen=True, slots=True)
class HyperSpec:
    """Manifold-constrained hyper-connections: `streams` residual streams mixed by a Sinkhorn-normalised matrix."""

    streams: int
    sinkhorn_iterations: int
    eps: float


@dataclass(frozen=True, slots=True)
class KVField:
    """Something that a layer caches per KV group: `width` elements for every `pool` consecutive tokens."""

    name: str
    width: int
    pool: int = 1


@dataclass(frozen=True, slots=True)
class DenseSpec:
    """A gated MLP."""

    ffn: int


@dataclass(frozen=True, slots=True)
class MoESpec:
    """Routed experts and shared ones (always on, as one MLP of num_shared * expert_ffn)."""

    num_experts: int
    top_k: int
    expert_ffn: int
    num_shared: int
    scoring: Literal["sigmoid", "softmax"]
    norm_topk: bool
    scaling: float
    n_group: int = 1
    topk_group: int = 1
    correction_bias: bool = False
    """e_score_correction_bias is added for the choice, not for the weight."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One model, normalised. Made by `spec.config.normalise`."""

    model_type: str
    vocab_size: int
    hidden_size: int
    attention: MLASpec | GQASpec
    rope: RopeSpec
    ffns: tuple[DenseSpec | MoESpec, ...]
    """One a layer."""
    norm_eps: float
    tied_embeddings: bool
    max_position: int
    eos_token_ids: tuple[int, ...]
    checkpoint_dtype: str
    indexer: IndexerSpec | None = None
    """None: attention is dense."""
    indexed: tuple[bool, ...] = ()
    """One a layer: it has an indexer of its own. Empty without `indexer`."""
    kda: KDASpec | None = None
    """The mixer of the layers that `attends` leaves out; None if all attend."""
    attends: tuple[bool, ...] = ()
    """One a layer: it has `attention` and caches KV; otherwise it is `kda`. Empty: all attend."""
    hyper: HyperSpec | None = None
    """None: one residual stream."""
    swiglu_limit: float | None = None
    """gate <= limit, up in [-limit, limit], in every MLP; None: not clamped."""
    mtp_layers: int = 0
    """Multi-token prediction layers that the checkpoint has after the decoder's; they are not computed."""

    def __post_init__(self) -> None:
        for name, flags in (("indexed", self.indexed), ("attends", self.attends)):
            if flags and len(flags) != self.num_layers:
                raise ConfigError(f"{name} has {len(flags)} entries for {self.num_layers} layers")
        if any(self.indexed) and self.indexer is None:
            raise ConfigError("layers have an indexer whose sizes are not given")
        if not all(self.attends) and self.kda is None:
            raise ConfigError("layers are recurrent whose sizes are not given")

    @property
    def num_layers(self) -> int:
        return len(self.ffns)

    @property
    def attention_layers(self) -> tuple[int, ...]:
        """The layers that cache KV and have a switchable shard."""
        return tuple(layer for layer in range(self.num_layers) if not self.is_kda(layer))

    @property
    def kda_layers(self) -> tuple[int, ...]:
        """The layers with a recurrent state."""
        return tuple(layer for layer in range(self.num_layers) if self.is_kda(layer))

    def is_kda(self, layer: int) -> bool:
        """The layer has a recurrent state and caches no KV."""
        return bool(self.attends) and not self.attends[layer]

    def has_indexer(self, layer: int) -> bool:
        """The layer has an indexer of its own, and so index keys."""
        return bool(self.indexed) and self.indexed[layer]

    @property
    def is_mla(self) -> bool:
        return isinstance(self.attention, MLASpec)

    def kv_groups(self, ranks: int) -> int:
        """G: 1 for MLA, min(KV heads, T) for GQA."""
        return 1 if isinstance(self.attention, MLASpec) else min(self.attention.num_kv_heads, ranks)

    def kv_heads_per_group(self, ranks: int) -> int:
        if isinstance(self.attention, MLASpec):
            return 1
        return self.attention.num_kv_heads // self.kv_groups(ranks)

    def kv_fields(self, ranks: int) -> tuple[KVField, ...]:
        """What one KV group of an attention layer caches for the attention itself."""
        if isinstance(self.attention, MLASpec):
            return (KVField("latent", self.attention.latent_dim),)
        width = self.kv_heads_per_group(ranks) * self.attention.head_dim
        return KVField("k", width), KVField("v", width)

    def layer_kv_fields(self, layer: int, ranks: int) -> tuple[KVField, ...]:
        """All that one KV group of `layer` caches: nothing if it is recurrent; `index` where it has an indexer."""
        if self.is_kda(layer):
            return ()
        if self.indexer is None or not self.has_indexer(layer):
            return self.kv_fields(ranks)
        return (*self.kv_fields(ranks), KVField("index", self.indexer.head_dim, self.indexer.pool))

    def state_bytes(self, ranks: int, itemsize: int) -> int:
        """Bytes of one request's recurrent states on each rank, whatever its length; 0 without KDA.

        A layer has [heads / T, head_dim, head_dim] in float32, and the convolutions' last conv_kernel - 1 inputs
        of q, k and v in the computing type (`itemsize`).
        """
        if self.kda is None:
            return 0
        kda, heads = self.kda, self.kda.num_heads // ranks
        state = heads * kda.head_dim * kda.head_dim * 4
        conv = 3 * heads * kda.head_dim * (kda.conv_kernel - 1) * itemsize
        return len(self.kda_layers) * (state + conv)

    def shard_tensors(self, ranks: int) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """The switchable attention weights of one of `attention_layers` and one head shard, in slot order.

        Run-time form: rows are output features of the shard's heads; of `o` [hidden, heads * v] they are the hidden
        features, and its columns are the shard's.
        MLA: `kv_b` is [heads, nope + v, latent]; W_UK and W_UV are views of it.
        GQA: k and v are those of the shard's KV group (stored T/G times over all shards).
        """
        att, d = self.attention, self.hidden_size
        heads = att.num_heads // ranks
        if isinstance(att, MLASpec):
            q_in = d if att.q_lora_rank is None else att.q_lora_rank
            return (
                ("q", (heads * (att.nope_dim + att.rope_dim), q_in)),
                ("kv_b", (heads, att.nope_dim + att.v_dim, att.kv_lora_rank)),
                ("o", (d, heads * att.v_dim)),
            )
        kv_rows = self.kv_heads_per_group(ranks) * att.head_dim
        tensors: tuple[tuple[str, tuple[int, ...]], ...] = (
            ("q", (heads * att.head_dim, d)),
            ("k", (kv_rows, d)),
            ("v", (kv_rows, d)),
            ("o", (d, heads * att.head_dim)),
        )
        if att.bias:
            tensors += (("q_bias", (heads * att.head_dim,)), ("k_bias", (kv_rows,)), ("v_bias", (kv_rows,)))
        return tensors

    def check_ranks(self, ranks: int) -> None:
        """ConfigError unless `T | H`, also of recurrent heads, and (`T | H_kv` or `H_kv | T`); names what works."""
        if not self.fits_ranks(ranks):
            good = ", ".join(str(r) for r in range(1, self.attention.num_heads + 1) if self.fits_ranks(r))
            kv = "" if isinstance(self.attention, MLASpec) else f" and {self.attention.num_kv_heads} KV heads"
            kv += "" if self.kda is None else f" and {self.kda.num_heads} recurrent heads"
            raise ConfigError(
                f"{self.attention.num_heads} attention heads{kv} cannot be divided over {ranks} ranks;"
                f" choose --ranks from {good}"
            )

    def fits_ranks(self, ranks: int) -> bool:
        """What `check_ranks` checks."""
        if ranks < 1 or self.attention.num_heads % ranks:
            return False
        if self.kda is not None and self.kda.num_heads % ranks:
            return False
        if isinstance(self.attention, MLASpec):
            return True
        kv = self.attention.num_kv_heads
        return kv % ranks == 0 or ranks % kv == 0
