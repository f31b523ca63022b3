"""What a weight slot holds: one head shard of the switchable attention weights of all layers that have them."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from splash.kv.geometry import PoolGeometry
from splash.kv.sections import ALIGN_BYTES, Field, PageFormat, page_format
from splash.spec.model import ITEMSIZE, ModelSpec


@dataclass(frozen=True, slots=True)
class ShardTensor:
    """One tensor of a shard: `offset` bytes from the slot's start, contiguous, run-time form."""

    layer: int
    name: str
    shape: tuple[int, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class ShardFormat:
    tensors: tuple[ShardTensor, ...]
    num_bytes: int


def shard_format(spec: ModelSpec, ranks: int, itemsize: int) -> ShardFormat:
    """Tensors in order of layer and name, each aligned, so that a shard is one run of bytes."""
    tensors: list[ShardTensor] = []
    offset = 0
    for layer in spec.attention_layers:
        for name, shape in spec.shard_tensors(ranks):
            tensors.append(ShardTensor(layer, name, shape, offset))
            size = prod(shape) * itemsize
            offset += -(-size // ALIGN_BYTES) * ALIGN_BYTES
    return ShardFormat(tuple(tensors), offset)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The formats of a rank's pool and its division; equal on all ranks."""

    pages: PageFormat
    shards: ShardFormat
    geometry: PoolGeometry


def plan_memory(
    spec: ModelSpec,
    *,
    ranks: int,
    dtype: str,
    block_size: int,
    kv_pages: int | None = None,
    pool_bytes: int | None = None,
) -> MemoryPlan:
    """The pool of one rank: `kv_pages` beside all weight slots, or `pool_bytes` in all (one of them)."""
    itemsize = ITEMSIZE[dtype]
    layers = [
        [Field(f.name, f.width, itemsize, dtype, f.pool) for f in spec.layer_kv_fields(layer, ranks)]
        for layer in range(spec.num_layers)
    ]
    pages = page_format(layers, block_size)
    shards = shard_format(spec, ranks, itemsize)
    if pool_bytes is not None:
        num_pages = pool_bytes // pages.page_bytes
    else:
        assert kv_pages is not None
        num_pages = ranks * -(-shards.num_bytes // pages.page_bytes) + 1 + kv_pages
    return MemoryPlan(pages, shards, PoolGeometry(num_pages, pages.page_bytes, ranks, shards.num_bytes))
