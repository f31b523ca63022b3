"""Where loaders write, and what they have loaded."""

from __future__ import annotations

import torch

from splash.kv.slots import shard_format
from splash.spec.model import ModelSpec


def slot_views(spec: ModelSpec, ranks: int, dtype: torch.dtype) -> dict[tuple[int, str], torch.Tensor]:
    """Views of a slot filled with NaN, as a rank's pool gives them."""
    form = shard_format(spec, ranks, dtype.itemsize)
    slot = torch.full((form.num_bytes // dtype.itemsize,), float("nan"), dtype=dtype)
    views = {}
    for tensor in form.tensors:
        start = tensor.offset // dtype.itemsize
        size = torch.Size(tensor.shape).numel()
        views[tensor.layer, tensor.name] = slot[start : start + size].view(tensor.shape)
    return views


def loaded_tensors(weights: object) -> list[torch.Tensor]:
    """Every tensor of a tree of dataclasses, shared ones once."""
    found: dict[int, torch.Tensor] = {}

    def visit(node: object) -> None:
        if isinstance(node, torch.Tensor):
            found[id(node)] = node
        elif isinstance(node, tuple):
            for part in node:
                visit(part)
        elif hasattr(node, "__dataclass_fields__"):
            for name in node.__dataclass_fields__:
                visit(getattr(node, name))

    visit(weights)
    return list(found.values())
