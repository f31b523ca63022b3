"""Bytes of weights and KV by the type they are stored in: arithmetic over the tensors of `spec.tensors`.

Sources of what quantised releases keep, and of KV formats: MODELS §1.1 and §3.2.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil, prod

from splash.core.errors import ConfigError
from splash.spec.model import KVField, MLASpec, ModelSpec
from splash.spec.packing import Packing
from splash.spec.tensors import LogicalTensor, Part, Precision, counted_tensors, held_shape

SCALE_BYTES = 4
"""Scales are float32."""


@dataclass(frozen=True, slots=True)
class WeightStorage:
    """How a release stores its weights; `WEIGHT_STORAGES` has those there are."""

    name: str
    linear: int
    """Bytes of an element of a matrix that is quantised."""
    plain: int
    """Bytes of an element of everything else but what is always float32."""
    tile: tuple[int | None, int | None] | None = None
    """Rows and columns that share a scale, None for all there are; None: no scales."""
    kept: frozenset[Part] = frozenset()
    """Parts whose matrices are not quantised."""

    def elements(self, tensor: LogicalTensor, shape: tuple[int, ...]) -> int:
        """Bytes of the elements of a part of `tensor`, which has `shape`.

        Matrices that are computed in float32 (router, hyper-connections) are counted as they are released: plain.
        """
        if self._quantises(tensor):
            return prod(shape) * self.linear
        exact = tensor.precision is Precision.EXACT and len(shape) != 2
        return prod(shape) * (4 if exact else self.plain)

    def scales(self, tensor: LogicalTensor, shape: tuple[int, ...]) -> int:
        """Bytes of the scales of a part of `tensor`; incomplete tiles count."""
        if self.tile is None or not self._quantises(tensor) or not prod(shape):
            return 0
        tiles = (
            1 if tile is None else ceil(size / tile) for size, tile in zip(shape, self.tile, strict=True)
        )
        return prod(tiles) * SCALE_BYTES

    def _quantises(self, tensor: LogicalTensor) -> bool:
        return tensor.precision is Precision.LINEAR and tensor.part not in self.kept


WEIGHT_STORAGES: Mapping[str, WeightStorage] = {
    storage.name: storage
    for storage in (
        WeightStorage("float32", 4, 4),
        WeightStorage("bfloat16", 2, 2),
        # GLM-5.3-Flash's FP8 release has its KDA layers in BF16.
        WeightStorage("fp8_block", 1, 2, tile=(128, 128), kept=frozenset({Part.KDA})),
        WeightStorage("int8", 1, 2, tile=(1, None)),
    )
}


def weight_storage(name: str) -> WeightStorage:
    """The storage called `name`; ConfigError lists the known ones."""
    if name not in WEIGHT_STORAGES:
        known = ", ".join(WEIGHT_STORAGES)
        raise ConfigError(f"unknown weight type '{name}'; known: {known} (--dtype)")
    return WEIGHT_STORAGES[name]


@dataclass(frozen=True, slots=True)
class WeightBytes:
    """Bytes of the weights on one rank of `ranks`, with its own head shard alone, by part."""

    ranks: int
    parts: Mapping[Part, int]
    """Without scales; only parts that the model has. ATTENTION is the own head shard."""
    scales: int
    shard: int
    """One head shard with its scales: what a resident replica takes."""

    @property
    def own(self) -> int:
        """All of it, with the own shard resident (tp, dop, dcp)."""
        return sum(self.parts.values()) + self.scales

    @property
    def full(self) -> int:
        """All of it, with every shard resident (dp, cp)."""
        return self.own + (self.ranks - 1) * self.shard


def rank_weight_bytes(spec: ModelSpec, storage: WeightStorage, *, ranks: int) -> WeightBytes:
    """What the fullest rank holds, without padding: the last one, where sizes cannot be divided evenly."""
    parts: Counter[Part] = Counter()
    scales = shard = 0
    for tensor, layers in counted_tensors(spec):
        shape = held_shape(spec, tensor, rank=ranks - 1, ranks=ranks)
        elements, of_scales = layers * storage.elements(tensor, shape), layers * storage.scales(tensor, shape)
        parts[tensor.part] += elements
        scales += of_scales
        shard += elements + of_scales if tensor.part is Part.ATTENTION else 0
    return WeightBytes(ranks, dict(parts), scales, shard)


@dataclass(frozen=True, slots=True)
class KVStorage:
    """The types in which KV and index keys are cached."""

    kv: str
    index: str

    def __post_init__(self) -> None:
        for name in (self.kv, self.index):
            if name not in KV_TYPES:
                raise ConfigError(f"unknown KV type '{name}'; known: {', '.join(KV_TYPES)} (--kv-dtype)")


FP8 = "fp8"
KV_TYPES = ("float32", "bfloat16", FP8)
_PLAIN_BYTES = {"float32": 4, "bfloat16": 2}


def kv_storage(name: str) -> KVStorage:
    """KV in that type; index keys in FP8, as DeepSeek and GLM score them, unless KV is float32."""
    return KVStorage(name, "float32" if name == "float32" else "fp8")


def block_bytes(spec: ModelSpec, storage: KVStorage, *, ranks: int, block_size: int) -> int:
    """Bytes that `block_size` tokens of one KV group take in all layers, with scales, without padding.

    ConfigError if a block does not hold whole pools of the indexer.
    """
    return sum(
        field_bytes(spec, field, storage) * _entries(field, block_size)
        for layer in range(spec.num_layers)
        for field in spec.layer_kv_fields(layer, ranks)
    )


def token_bytes(spec: ModelSpec, storage: KVStorage, *, ranks: int) -> float:
    """Bytes that one token takes in one KV group, all layers; a pool's key is shared out over its tokens."""
    pool = 1 if spec.indexer is None else spec.indexer.pool
    return block_bytes(spec, storage, ranks=ranks, block_size=pool) / pool


def index_gain(spec: ModelSpec, storage: KVStorage, *, ranks: int) -> float:
    """How many more tokens fit, by share, than if every layer that attends cached index keys; 0 without an indexer."""
    if spec.indexer is None:
        return 0.0
    attends = tuple(not spec.is_kda(layer) for layer in range(spec.num_layers))
    everywhere = token_bytes(replace(spec, indexed=attends), storage, ranks=ranks)
    return everywhere / token_bytes(spec, storage, ranks=ranks) - 1


def field_bytes(spec: ModelSpec, field: KVField, storage: KVStorage) -> int:
    """Bytes of one entry of a field. In FP8 the rope key beside a latent stays in BF16 (MODELS §3.2)."""
    dtype = storage.index if field.name == "index" else storage.kv
    if dtype != FP8:
        return field.width * _PLAIN_BYTES[dtype]
    return packing_of(spec, field).num_bytes


def packing_of(spec: ModelSpec, field: KVField) -> Packing:
    """How an entry of `field` is packed in FP8: all of it, but for the rope key beside a latent (MODELS §3.2)."""
    rope = spec.attention.rope_dim if isinstance(spec.attention, MLASpec) and field.name == "latent" else 0
    return Packing(field.width - rope, rope)


def _entries(field: KVField, block_size: int) -> int:
    if block_size % field.pool:
        raise ConfigError(f"blocks of {block_size} tokens do not hold whole pools of {field.pool} tokens")
    return block_size // field.pool
