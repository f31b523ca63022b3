"""What every rank has whole is stored once, where ranks can map each other's memory.

Ranks are at the same layer at about the same time, so those that share a cache read such a matrix from memory
once instead of once each: that is what a step of few rows waits for.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from splash.hal.protocol import Backend, Communicator
from splash.model.attention.weights import MLAWeights
from splash.model.weights import LayerWeights, RankWeights

ALIGN_BYTES = 4096


def share_replicated(weights: RankWeights, comm: Communicator, backend: Backend) -> RankWeights:
    """Collective. The same weights; the large replicated ones (MLA's down-projections) lie in rank 0's memory."""
    sizes = [_aligned(m) for m in map(_matrix, weights.layers) if m is not None]
    if comm.size == 1 or not backend.caps.mapped_peers or not sizes:
        return weights
    place = backend.pool(comm, sum(sizes)).peer(0)
    offset, layers = 0, []
    for layer in weights.layers:
        matrix = _matrix(layer)
        if matrix is not None:
            layer = _moved(layer, matrix, place[offset:], write=comm.rank == 0)
            offset += _aligned(matrix)
        layers.append(layer)
    comm.barrier()  # nobody reads before rank 0 has written
    return replace(weights, layers=tuple(layers))


def _matrix(layer: LayerWeights) -> torch.Tensor | None:
    return layer.attention.a if isinstance(layer.attention, MLAWeights) else None


def _aligned(matrix: torch.Tensor) -> int:
    return -(-matrix.numel() * matrix.itemsize // ALIGN_BYTES) * ALIGN_BYTES


def _moved(layer: LayerWeights, matrix: torch.Tensor, place: torch.Tensor, *, write: bool) -> LayerWeights:
    """`layer` with `matrix` at the start of `place`, in the same memory order."""
    transposed = not matrix.is_contiguous()
    stored = matrix.t() if transposed else matrix
    there = place[: stored.numel() * stored.itemsize].view(stored.dtype).view(stored.shape)
    if write:
        there.copy_(stored)
    assert isinstance(layer.attention, MLAWeights)
    return replace(layer, attention=replace(layer.attention, a=there.t() if transposed else there))
