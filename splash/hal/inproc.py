"""A backend whose ranks are threads of this process: for tests of the model, the executor and the engine."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from pkgutil import resolve_name
from typing import Any

import torch

from splash.core.errors import NotSupported
from splash.hal.caps import Caps, DeviceInfo
from splash.hal.copying import InlineCopier
from splash.hal.protocol import Attention, Communicator, Copier, Pool
from splash.hal.reference import ReferenceAttention
from splash.hal.threadjob import ThreadJob
from splash.hal.threads import ThreadCommunicator

DEFAULT_CAPS = Caps(
    block_size=16,
    dtypes=("float32", "bfloat16"),
    mapped_peers=True,
    max_ranks=64,
    divides_replicated=True,
)


class SharedPools:
    """One rank's pool among those of its fellow threads: anonymous pages, zero until touched."""

    def __init__(self, rank: int, pools: Sequence[torch.Tensor]) -> None:
        self._rank = rank
        self._pools = list(pools)

    @property
    def bytes(self) -> torch.Tensor:
        return self._pools[self._rank]

    def peer(self, rank: int) -> torch.Tensor:
        return self._pools[rank]

    def close(self) -> None:
        self._pools.clear()


class InProcessBackend:
    """A whole port on threads. `attention` defaults to the reference; `timeout_s` bounds every collective."""

    def __init__(
        self, *, attention: Attention | None = None, caps: Caps = DEFAULT_CAPS, timeout_s: float = 60.0
    ) -> None:
        self._attention = attention or ReferenceAttention()
        self._caps = caps
        self._timeout_s = timeout_s

    @property
    def name(self) -> str:
        return "inproc"

    @property
    def caps(self) -> Caps:
        return self._caps

    @property
    def device(self) -> str:
        return "cpu"

    def probe(self) -> list[DeviceInfo]:
        return [DeviceInfo(0, "threads of this process", 0)]

    def launch(self, size: int, entry: str, args: Any) -> ThreadJob:
        if not 1 <= size <= self._caps.max_ranks:
            raise NotSupported(f"{size} ranks: the in-process backend runs 1 to {self._caps.max_ranks}")
        return ThreadJob(self, size, resolve_name(entry), args, timeout_s=self._timeout_s)

    def pool(self, comm: Communicator, num_bytes: int) -> Pool:
        assert isinstance(comm, ThreadCommunicator)
        own = torch.frombuffer(mmap.mmap(-1, num_bytes), dtype=torch.uint8)
        return SharedPools(comm.rank, comm.exchange("pool", (num_bytes,), own, list))

    def copier(self, comm: Communicator, pool: Pool) -> Copier:
        return InlineCopier(rank=comm.rank, size=comm.size, pool=pool)

    def attention(self) -> Attention:
        return self._attention

    def synchronize(self) -> None:
        """Calls return when they are done."""
