"""Weight slots as the model sees them: views by layer and shard, readable only where resident."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import fields, is_dataclass
from typing import Any, Generic, TypeVar, overload

import torch

from splash.kv.slots import MemoryPlan, ShardTensor
from splash.model.attention.weights import GQAShard, MLAShard
from splash.spec.model import GQASpec, MLASpec, ModelSpec

Shard = MLAShard | GQAShard
S = TypeVar("S", bound=Shard)


class Shards(Sequence[S], Generic[S]):
    """The head shards of one layer, by number. Reading one that is not resident is an error of the plan."""

    def __init__(self, views: Sequence[S], resident: Set[int]) -> None:
        self._views: Sequence[S] = views
        self._resident = resident

    @overload
    def __getitem__(self, index: int) -> S: ...
    @overload
    def __getitem__(self, index: slice) -> list[S]: ...
    def __getitem__(self, index: int | slice) -> S | list[S]:
        if isinstance(index, slice):
            return [self[j] for j in range(*index.indices(len(self._views)))]
        assert index in self._resident, (
            f"head shard {index} is read but only {sorted(self._resident)} are resident"
        )
        return self._views[index]

    def __iter__(self) -> Iterator[S]:
        for j in range(len(self._views)):
            yield self[j]

    def __len__(self) -> int:
        return len(self._views)


def slot_tensors(
    pool: torch.Tensor, memory: MemoryPlan, shard: int, dtype: torch.dtype
) -> dict[tuple[int, str], torch.Tensor]:
    """All tensors of slot `shard` in the flat `pool` (uint8), by (layer, name)."""
    typed = pool.view(dtype)
    start = memory.geometry.slot_offset(shard)
    return {(t.layer, t.name): _view(typed, t.shape, start + t.offset) for t in memory.shards.tensors}


def shard_views(
    pool: torch.Tensor, memory: MemoryPlan, spec: ModelSpec, ranks: int, dtype: torch.dtype
) -> list[Sequence[Shard]]:
    """Per layer the views of all T slots, resident or not; none for layers without a shard."""
    att, typed = spec.attention, pool.view(dtype)
    by_layer: list[dict[str, ShardTensor]] = [{} for _ in range(spec.num_layers)]
    for tensor in memory.shards.tensors:
        by_layer[tensor.layer][tensor.name] = tensor
    starts = [memory.geometry.slot_offset(shard) for shard in range(ranks)]
    if isinstance(att, MLASpec):
        return [[_mla(typed, tensors, start, att) for start in starts if tensors] for tensors in by_layer]
    return [[_gqa(typed, tensors, start, att) for start in starts] for tensors in by_layer]


def _mla(typed: torch.Tensor, tensors: dict[str, ShardTensor], start: int, att: MLASpec) -> MLAShard:
    q, kv_b, o = (_view(typed, tensors[n].shape, start + tensors[n].offset) for n in ("q", "kv_b", "o"))
    return MLAShard(q=q, w_uk=kv_b[:, : att.nope_dim], w_uv=kv_b[:, att.nope_dim :], o=o)


def _gqa(typed: torch.Tensor, tensors: dict[str, ShardTensor], start: int, att: GQASpec) -> GQAShard:
    def view(name: str) -> torch.Tensor:
        return _view(typed, tensors[name].shape, start + tensors[name].offset)

    q, k, v = (tensors[name] for name in ("q", "k", "v"))
    rows, hidden = q.shape[0] + k.shape[0] + v.shape[0], q.shape[1]
    above_v = (q.shape[0] + k.shape[0]) * hidden * typed.itemsize
    assert v.offset - q.offset == above_v, (
        "q, k and v of a slot are not adjacent: their sizes break the alignment"
    )
    return GQAShard(
        qkv=_view(typed, (rows, hidden), start + q.offset),
        biases=(view("q_bias"), view("k_bias"), view("v_bias")) if att.bias else None,
        o=view("o"),
    )


def _view(typed: torch.Tensor, shape: tuple[int, ...], offset: int) -> torch.Tensor:
    """A contiguous tensor `offset` bytes into the pool."""
    strides, width = [], 1
    for size in reversed(shape):
        strides.append(width)
        width *= size
    return typed.as_strided(shape, tuple(reversed(strides)), offset // typed.itemsize)


def tensor_bytes(tree: Any) -> int:
    """Bytes of all tensors in dataclasses and tuples; one that is named twice counts once."""
    sizes: dict[int, int] = {}

    def visit(node: Any) -> None:
        if isinstance(node, torch.Tensor):
            sizes[node.data_ptr()] = node.numel() * node.itemsize
        elif is_dataclass(node):
            for field in fields(node):
                visit(getattr(node, field.name))
        elif isinstance(node, tuple):
            for child in node:
                visit(child)

    visit(tree)
    return sum(sizes.values())
