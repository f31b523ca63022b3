"""What a weight slot holds: one head shard of the switchable attention weights of all layers that have them."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from splash.core.errors import CapacityError
from splash.kv.geometry import PoolGeometry
from splash.kv.sections import ALIGN_BYTES, PageFormat, page_format
from splash.kv.state import StateFormat, row_alignment, state_format, state_sections
from splash.kv.stored import stored_field
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
    state: StateFormat | None = None
    """What a request keeps on every rank beside its KV; None: nothing."""

    def __post_init__(self) -> None:
        kv_pages = self.geometry.kv_pages(self.geometry.ranks)
        if kv_pages <= self.state_pages:
            raise CapacityError(
                f"one request's recurrent state takes {self.state_pages} pages of {self.pages.page_bytes} bytes on each"
                f" rank, and the pool has {kv_pages} beside the weight slots; raise --kv-pages or --pool-mib"
            )

    @property
    def state_pages(self) -> int:
        """Pages of recurrent state that every request takes on every rank."""
        return 0 if self.state is None else self.state.num_pages


def plan_memory(
    spec: ModelSpec,
    *,
    ranks: int,
    dtype: str,
    block_size: int,
    kv_dtype: str | None = None,
    kv_pages: int | None = None,
    pool_bytes: int | None = None,
    num_states: int = 0,
) -> MemoryPlan:
    """The pool of one rank: `kv_pages` beside all weight slots and the recurrent states of `num_states` requests, or
    `pool_bytes` in all (one of them).

    `kv_dtype`: one of `KV_TYPES`, if it is not `dtype`. ConfigError for a model whose KV cannot be stored so.
    """
    itemsize = ITEMSIZE[dtype]
    layers = [
        [stored_field(f, spec, kv_dtype or dtype) for f in spec.layer_kv_fields(layer, ranks)]
        for layer in range(spec.num_layers)
    ]
    kept = state_sections(spec, ranks, dtype)
    pages = page_format(layers, block_size, multiple_of=row_alignment(kept))
    state = state_format(kept, pages.page_bytes)
    shards = shard_format(spec, ranks, itemsize)
    if pool_bytes is not None:
        num_pages = pool_bytes // pages.page_bytes
    else:
        assert kv_pages is not None
        slots = ranks * -(-shards.num_bytes // pages.page_bytes)
        states = 0 if state is None else num_states * state.num_pages
        num_pages = slots + 1 + states + kv_pages
    geometry = PoolGeometry(num_pages, pages.page_bytes, ranks, shards.num_bytes)
    return MemoryPlan(pages, shards, geometry, state)
