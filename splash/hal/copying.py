"""A one-sided copier: the destination copies from the mapped peer, at once, between two steps."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from time import monotonic

from splash.core.errors import ConfigError
from splash.hal.protocol import ByteCopy, Copied, Pool


class InlineCopier:
    """The `Copier` protocol where peers are mapped and copies run when they are handed over.

    How much a step may copy is the scheduler's budget; here every copy of the list is executed. One
    C-level memmove a run: it costs less than half a microsecond beside the bytes and releases the GIL.
    """

    def __init__(self, *, rank: int, size: int, pool: Pool) -> None:
        self._rank = rank
        self._pools = [pool.peer(r) for r in range(size)]  # keeps them mapped
        self._starts = [p.data_ptr() for p in self._pools]
        self._sizes = [p.numel() for p in self._pools]
        self._done: list[int] = []
        self._seconds = 0.0

    def submit(self, copies: Sequence[ByteCopy]) -> None:
        began_s = monotonic()
        for copy in copies:
            if copy.dst_rank == self._rank:
                self._execute(copy)
                self._done.append(copy.id)
        self._seconds += monotonic() - began_s

    def poll(self) -> Copied:
        copied = Copied(tuple(self._done), self._seconds)
        self._done, self._seconds = [], 0.0
        return copied

    def close(self) -> None:
        self._pools.clear()
        self._starts.clear()

    def _execute(self, copy: ByteCopy) -> None:
        source, target = self._starts[copy.src_rank], self._starts[copy.dst_rank]
        source_size, target_size = self._sizes[copy.src_rank], self._sizes[copy.dst_rank]
        for src, dst, count in copy.runs:
            if src < 0 or dst < 0 or count < 0 or src + count > source_size or dst + count > target_size:
                raise ConfigError(
                    f"copy {copy.id}: {count} bytes from {src} of rank {copy.src_rank} to {dst} of rank"
                    f" {copy.dst_rank} lie outside the pools ({source_size} and {target_size} bytes)"
                )
            ctypes.memmove(target + dst, source + src, count)
