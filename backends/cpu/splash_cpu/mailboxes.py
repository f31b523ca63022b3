"""Collectives through mailboxes in shared memory: post, wait, read.

Each rank has two mailboxes that its peers map. A collective copies what this rank gives into one of
them, raises this rank's counter, waits for the counters of all peers, and reads their mailboxes. The
next collective uses the other one. A mailbox is written again two collectives later: its writer has
then seen every counter of the one in between, so all peers have finished reading.

Measured against MPICH 5.0 (`python -m bench.cpu_port collectives`, 2 ranks): sums up to 16 KiB take the same 2 to 3 µs,
sums from 64 KiB on and all exchanges half the time or less. Where ranks share a core, MPI spins through whole time
slices (10 ms a sum), mailboxes yield (0.1 ms).
Stores must become visible in program order, which x86-64 promises; elsewhere MpiCommunicator is used.
"""

from __future__ import annotations

import os
import platform
from array import array
from collections.abc import Sequence
from itertools import accumulate
from math import prod
from time import monotonic

import torch

from splash.core.errors import CapacityError, RankFailure
from splash.hal.protocol import Communicator
from splash_cpu.segments import share

BOX_BYTES = 256 << 20
"""The largest message of one rank; a mailbox takes memory only as far as it was ever filled."""
HEADER_BYTES = 4096
MAX_RANKS = 127
# A header as int64: [0] the counter; then for each of the two mailboxes
SIGNATURE_AT = (1, 2)
"""what the collective is, so that every rank can compare,"""
STARTS_AT = (8, 8 + MAX_RANKS + 1)
"""and where each destination's part begins, then the end."""
SPINS = 1000
"""Looks at a peer's counter before the core is offered to others."""
YIELDS_PER_LOOK = 4096
"""Yields between two looks at the clock."""

OPS = ("barrier", "all_reduce", "all_gather", "all_gather_v", "all_to_all_v", "broadcast", "reduce_scatter")
BARRIER, ALL_REDUCE, ALL_GATHER, ALL_GATHER_V, ALL_TO_ALL_V, BROADCAST, REDUCE_SCATTER = range(len(OPS))
DTYPES = (
    torch.uint8,
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.bool,
)
DTYPE_CODES = {dtype: code for code, dtype in enumerate(DTYPES)}
NUMEL_BITS = 40
MAX_VIEWS = 4096
"""Shapes whose views are kept."""

Views = tuple[list[torch.Tensor], list[torch.Tensor]]


def available() -> bool:
    """Whether this machine keeps the order of stores (x86-64)."""
    return platform.machine().lower() in ("x86_64", "amd64")


class MailboxCommunicator:
    """The `Communicator` over mapped mailboxes. Sums are in rank order, so the same bits on all ranks."""

    def __init__(self, base: Communicator, *, spin: bool, timeout_s: float) -> None:
        """Collective over `base`. `spin`: every rank has a core of its own. A peer that does not come within
        `timeout_s`, or comes with another collective, is a RankFailure that names both."""
        self._rank, self._size = base.rank, base.size
        self._spins = SPINS if spin else 0
        self._timeout_s = timeout_s
        self._index = 0
        segments = share(base, HEADER_BYTES + 2 * BOX_BYTES, name="mail")
        self._heads = [memoryview(segment)[:HEADER_BYTES].cast("q") for segment in segments]
        self._head = self._heads[self._rank]
        self._others = [(r, head) for r, head in enumerate(self._heads) if r != self._rank]
        self._boxes = tuple(
            [
                torch.frombuffer(s, dtype=torch.uint8, offset=HEADER_BYTES + at, count=BOX_BYTES)
                for s in segments
            ]
            for at in (0, BOX_BYTES)
        )
        self._typed: dict[torch.dtype, Views] = {}
        self._views: dict[tuple[tuple[int, ...], torch.dtype], Views] = {}

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def size(self) -> int:
        return self._size

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        if self._size == 1:
            return x
        boxes = self._post(x, x.shape)
        self._meet(ALL_REDUCE, x.dtype, x.numel())
        if self._size == 2:
            return x.add_(boxes[1 - self._rank])
        _sum_in_order(boxes, out=x)
        return x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        boxes = self._post(x, (1, *x.shape))
        self._meet(ALL_GATHER, x.dtype, x.numel())
        return torch.cat(boxes)

    def all_gather_v(self, x: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        row = x.shape[1:]
        self._post(x, x.shape)
        self._meet(ALL_GATHER_V, x.dtype, sum(counts) * prod(row))
        parity = self._index & 1
        return torch.cat([self._box((count, *row), x.dtype)[parity][r] for r, count in enumerate(counts)])

    def all_to_all_v(
        self, send: torch.Tensor, send_counts: Sequence[int], recv_counts: Sequence[int]
    ) -> torch.Tensor:
        self._post(send, send.shape)
        parity = self._index & 1
        at = STARTS_AT[parity]
        self._head[at : at + self._size + 1] = array("q", accumulate(send_counts, initial=0))
        self._meet(ALL_TO_ALL_V, send.dtype, 0)
        boxes = self._whole(send.dtype)[parity]
        parts = []
        for r, expected in enumerate(recv_counts):
            start, stop = self._heads[r][at + self._rank], self._heads[r][at + self._rank + 1]
            if stop - start != expected:
                raise RankFailure(
                    f"all_to_all_v {self._index}: rank {self._rank} expects {expected} elements of rank {r},"
                    f" which sent {stop - start}"
                )
            parts.append(boxes[r][start:stop])
        return torch.cat(parts)

    def broadcast(self, x: torch.Tensor, root: int) -> torch.Tensor:
        if self._rank == root:
            self._post(x, x.shape)
        else:
            self._index += 1
        self._meet(BROADCAST, x.dtype, x.numel())
        if self._rank != root:
            x.copy_(self._box(x.shape, x.dtype)[self._index & 1][root])
        return x

    def reduce_scatter(self, x: torch.Tensor) -> torch.Tensor:
        boxes = self._post(x, x.shape)
        self._meet(REDUCE_SCATTER, x.dtype, x.numel())
        out = x.new_empty(x.shape[1:])
        _sum_in_order([box[self._rank] for box in boxes], out=out)
        return out

    def barrier(self) -> None:
        self._index += 1
        self._meet(BARRIER, torch.uint8, 0)

    def _post(self, x: torch.Tensor, shape: tuple[int, ...]) -> list[torch.Tensor]:
        """Begin the next collective with `x` in this rank's mailbox; all ranks' mailboxes as tensors of `shape`."""
        self._index += 1
        boxes = self._box(shape, x.dtype)[self._index & 1]
        boxes[self._rank].copy_(x)
        return boxes

    def _meet(self, op: int, dtype: torch.dtype, numel: int) -> None:
        """Tell the peers that this rank's part is posted, wait for theirs, and compare what they are."""
        index, head = self._index, self._head
        at = SIGNATURE_AT[index & 1]
        signature = (op << 8 | DTYPE_CODES[dtype]) << NUMEL_BITS | numel
        head[at] = signature
        head[0] = index
        for rank, other in self._others:
            spins = self._spins
            while other[0] < index:
                if spins:
                    spins -= 1
                else:
                    self._await(rank, other, signature)
        for _, other in self._others:
            if other[at] != signature:
                seen = ", ".join(f"rank {r} {_words(h[at])}" for r, h in enumerate(self._heads))
                raise RankFailure(f"collective {index} differs between ranks: {seen}")

    def _await(self, rank: int, other: memoryview, signature: int) -> None:
        """The slow half of waiting: the core goes to whoever needs it, and the wait ends some day."""
        deadline = monotonic() + self._timeout_s
        while True:
            for _ in range(YIELDS_PER_LOOK):
                os.sched_yield()
                if other[0] >= self._index:
                    return
            if monotonic() > deadline:
                raise RankFailure(
                    f"collective {self._index} ({_words(signature)}): rank {self._rank} waited {self._timeout_s:g} s"
                    f" for rank {rank}, which is at collective {other[0]}"
                )

    def _box(self, shape: tuple[int, ...], dtype: torch.dtype) -> Views:
        """The beginning of every mailbox as a tensor of `shape`: by parity, then by rank."""
        views = self._views.get((shape, dtype))
        if views is None:
            numel = prod(shape)
            if numel * dtype.itemsize > BOX_BYTES:
                raise CapacityError(
                    f"a message of {numel * dtype.itemsize >> 20} MiB exceeds a mailbox of {BOX_BYTES >> 20} MiB;"
                    " lower --token-budget"
                )
            if len(self._views) >= MAX_VIEWS:
                self._views.clear()
            even, odd = ([box[:numel].view(shape) for box in boxes] for boxes in self._whole(dtype))
            views = self._views[shape, dtype] = (even, odd)
        return views

    def _whole(self, dtype: torch.dtype) -> Views:
        views = self._typed.get(dtype)
        if views is None:
            even, odd = self._boxes
            views = self._typed[dtype] = ([b.view(dtype) for b in even], [b.view(dtype) for b in odd])
        return views


def _words(signature: int) -> str:
    """A signature for people: "all_reduce of 64 float32"."""
    kind, numel = divmod(signature, 1 << NUMEL_BITS)
    return f"{OPS[kind >> 8]} of {numel} {str(DTYPES[kind & 255]).removeprefix('torch.')}"


def _sum_in_order(parts: list[torch.Tensor], *, out: torch.Tensor) -> None:
    """out = parts[0] + parts[1] + ...; bfloat16 is summed in float32 and rounded once."""
    if out.dtype == torch.bfloat16 and len(parts) > 2:
        total = parts[0].float()
        for part in parts[1:]:
            total.add_(part)
        out.copy_(total)
    elif len(parts) == 1:
        out.copy_(parts[0])
    else:
        torch.add(parts[0], parts[1], out=out)
        for part in parts[2:]:
            out.add_(part)
