"""Collectives through MPI: what starts the shared-memory communicator, and its stand-in where that cannot run.

mpi4py's buffer interface over the tensors' own memory, so nothing is copied or pickled on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import prod
from typing import Any

import torch
from mpi4py import MPI

SUMS = {torch.float32: MPI.FLOAT, torch.float64: MPI.DOUBLE, torch.int64: MPI.INT64_T}


class MpiCommunicator:
    """The `Communicator` over an MPI communicator; bfloat16 is summed in float32 and rounded once."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self._rank = comm.Get_rank()
        self._size = comm.Get_size()

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def size(self) -> int:
        return self._size

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        wide = x if x.dtype in SUMS else x.float()
        self._comm.Allreduce(MPI.IN_PLACE, _numbers(wide))
        return x if wide is x else x.copy_(wide)

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        out = x.new_empty(self._size, *x.shape)
        self._comm.Allgather(_bytes(x), _bytes(out))
        return out

    def all_gather_v(self, x: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        row_bytes = x.itemsize * prod(x.shape[1:])
        out = x.new_empty(sum(counts), *x.shape[1:])
        self._comm.Allgatherv(_bytes(x), _cut(out, [count * row_bytes for count in counts]))
        return out

    def all_to_all_v(
        self, send: torch.Tensor, send_counts: Sequence[int], recv_counts: Sequence[int]
    ) -> torch.Tensor:
        out = send.new_empty(sum(recv_counts))
        item = send.itemsize
        self._comm.Alltoallv(
            _cut(send, [count * item for count in send_counts]),
            _cut(out, [count * item for count in recv_counts]),
        )
        return out

    def broadcast(self, x: torch.Tensor, root: int) -> torch.Tensor:
        self._comm.Bcast(_bytes(x), root=root)
        return x

    def reduce_scatter(self, x: torch.Tensor) -> torch.Tensor:
        wide = x if x.dtype in SUMS else x.float()
        out = wide.new_empty(x.shape[1:])
        self._comm.Reduce_scatter_block(_numbers(wide), _numbers(out))
        return out.to(x.dtype)

    def barrier(self) -> None:
        self._comm.Barrier()


def _numbers(x: torch.Tensor) -> list[Any]:
    return [x.numpy(), SUMS[x.dtype]]


def _bytes(x: torch.Tensor) -> list[Any]:
    return [x.view(-1).view(torch.uint8).numpy(), MPI.BYTE]


def _cut(x: torch.Tensor, counts: list[int]) -> list[Any]:
    """`x` as bytes with one part a rank, in rank order."""
    starts = [0, *accumulate(counts)][:-1]
    return [x.view(-1).view(torch.uint8).numpy(), (counts, starts), MPI.BYTE]
