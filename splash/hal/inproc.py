"""A backend whose ranks are threads of this process: for tests of the model, the executor and the engine.

What all ranks must do alike is checked at every collective, and nothing hangs: a difference, a timeout
or an exception in one rank is an exception in all of them, with the first reason.
"""

from __future__ import annotations

import mmap
import pickle
import threading
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from time import monotonic
from typing import Any, TypeVar

import torch

from splash.core.errors import NotSupported, RankFailure, SplashError
from splash.hal.caps import Caps, DeviceInfo
from splash.hal.copying import InlineCopier
from splash.hal.protocol import Attention, Communicator, Copier, JobClosed, Pool, RankContext
from splash.hal.reference import ReferenceAttention

R = TypeVar("R")

DEFAULT_CAPS = Caps(
    block_size=16,
    dtypes=("float32", "bfloat16"),
    mapped_peers=True,
    max_ranks=64,
    divides_replicated=True,
)


@dataclass(frozen=True, slots=True)
class Call:
    """One collective as every rank must enter it; `shape` is what has to be equal (counts where they may differ)."""

    index: int
    op: str
    shape: tuple[int, ...]
    dtype: torch.dtype | None

    def __str__(self) -> str:
        return f"{self.op}{list(self.shape)} {str(self.dtype).removeprefix('torch.')}"


class Hub:
    """Where the threads of one job meet; keeps the first reason why they no longer can."""

    def __init__(self, size: int, timeout_s: float) -> None:
        self.size = size
        self._timeout_s = timeout_s
        self._barrier = threading.Barrier(size)
        self._calls: list[Call | None] = [None] * size
        self._payloads: list[Any] = [None] * size
        self._lock = threading.Lock()
        self._reason: str | None = None

    def meet(self, rank: int, call: Call, payload: Any, read: Callable[[list[Any]], R]) -> R:
        """`read` of all ranks' payloads, which nobody changes meanwhile."""
        self._calls[rank], self._payloads[rank] = call, payload
        self._wait(rank, call)
        if any(other != call for other in self._calls):
            seen = ", ".join(f"rank {r} {other}" for r, other in enumerate(self._calls))
            raise self.fail(f"collective {call.index} differs between ranks: {seen}")
        result = read(self._payloads)
        self._wait(rank, call)
        return result

    def fail(self, reason: str) -> RankFailure:
        """Release everyone who waits or will wait; the first reason stays."""
        with self._lock:
            self._reason = self._reason or reason
        self._barrier.abort()
        return RankFailure(self._reason)

    def _wait(self, rank: int, call: Call) -> None:
        try:
            self._barrier.wait(self._timeout_s)
        except threading.BrokenBarrierError:
            missing = [
                r
                for r, other in enumerate(self._calls)
                if r != rank and (other is None or other.index < call.index)
            ]
            raise self.fail(
                f"collective {call.index} ({call}): rank {rank} waited {self._timeout_s:g} s for ranks {missing}"
            ) from None


class ThreadCommunicator:
    """The `Communicator` of one thread. `calls` are the last collectives that it has entered."""

    def __init__(self, hub: Hub, rank: int) -> None:
        self._hub = hub
        self._rank = rank
        self._entered = 0
        self.calls: deque[Call] = deque(maxlen=100_000)

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def size(self) -> int:
        return self._hub.size

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        total = self.exchange("all_reduce", x.shape, x, sum_in_order, dtype=x.dtype)
        return x.copy_(total)

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        return self.exchange("all_gather", x.shape, x, torch.stack, dtype=x.dtype)

    def all_gather_v(self, x: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        assert x.shape[0] == counts[self._rank], (tuple(x.shape), list(counts), self._rank)
        shape = (*counts, *x.shape[1:])
        return self.exchange("all_gather_v", shape, x, torch.cat, dtype=x.dtype)

    def all_to_all_v(
        self, send: torch.Tensor, send_counts: Sequence[int], recv_counts: Sequence[int]
    ) -> torch.Tensor:
        assert send.shape == (sum(send_counts),), (tuple(send.shape), list(send_counts))

        def read(payloads: list[tuple[torch.Tensor, list[int]]]) -> torch.Tensor:
            parts = [tensor.split(counts)[self._rank] for tensor, counts in payloads]
            received = [part.numel() for part in parts]
            if received != list(recv_counts):
                raise self._hub.fail(
                    f"all_to_all_v: rank {self._rank} expects {list(recv_counts)} elements, is sent {received}"
                )
            return torch.cat(parts)

        return self.exchange("all_to_all_v", (), (send, list(send_counts)), read, dtype=send.dtype)

    def broadcast(self, x: torch.Tensor, root: int) -> torch.Tensor:
        value = self.exchange("broadcast", (root, *x.shape), x, lambda xs: xs[root].clone(), dtype=x.dtype)
        return x.copy_(value)

    def reduce_scatter(self, x: torch.Tensor) -> torch.Tensor:
        return self.exchange(
            "reduce_scatter",
            x.shape,
            x,
            lambda xs: sum_in_order([part[self._rank] for part in xs]),
            dtype=x.dtype,
        )

    def barrier(self) -> None:
        self.exchange("barrier", (), None, lambda _: None)

    def exchange(
        self,
        op: str,
        shape: Sequence[int],
        payload: Any,
        read: Callable[[list[Any]], R],
        dtype: torch.dtype | None = None,
    ) -> R:
        """Any collective: every rank gives `payload` and gets `read` of all of them in rank order."""
        call = Call(self._entered, op, tuple(shape), dtype)
        self._entered += 1
        self.calls.append(call)
        return self._hub.meet(self._rank, call, payload, read)


def sum_in_order(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """The sum over ranks in rank order, so that it is the same bits everywhere; bfloat16 is rounded once."""
    wide = torch.float32 if parts[0].dtype == torch.bfloat16 else parts[0].dtype
    total = parts[0].to(wide, copy=True)
    for part in parts[1:]:
        total += part.to(wide)
    return total.to(parts[0].dtype)


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


def run_ranks(size: int, function: Callable[[ThreadCommunicator], R], *, timeout_s: float = 60.0) -> list[R]:
    """`function(communicator)` on `size` threads: their results in rank order, or the first exception."""
    hub = Hub(size, timeout_s)
    results: list[Any] = [None] * size
    failures: list[Exception] = []

    def run(rank: int) -> None:
        try:
            results[rank] = function(ThreadCommunicator(hub, rank))
        except Exception as error:
            failures.append(error)
            hub.fail(f"rank {rank} failed: {type(error).__name__}: {error}")

    threads = [threading.Thread(target=run, args=(r,), name=f"rank-{r}", daemon=True) for r in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return results


class ThreadJob:
    """The `RankJob` of threads. Messages are pickled, so that nothing is shared that processes would not share."""

    def __init__(
        self,
        backend: InProcessBackend,
        size: int,
        entry: Callable[[RankContext, Any], None],
        args: Any,
        *,
        timeout_s: float,
    ) -> None:
        self._hub = Hub(size, timeout_s)
        self._timeout_s = timeout_s
        self._changed = threading.Condition()
        self._inboxes: list[deque[bytes]] = [deque() for _ in range(size)]
        self._outboxes: list[deque[bytes]] = [deque() for _ in range(size)]
        self._closed = False
        self._failure: SplashError | None = None
        packed = pickle.dumps(args, protocol=5)
        self._threads = [
            threading.Thread(
                target=self._run, args=(backend, rank, entry, packed), name=f"rank-{rank}", daemon=True
            )
            for rank in range(size)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def size(self) -> int:
        return len(self._threads)

    def send(self, message: Any) -> None:
        packed = pickle.dumps(message, protocol=5)
        with self._changed:
            self._check()
            for inbox in self._inboxes:
                inbox.append(packed)
            self._changed.notify_all()

    def receive(self, timeout_s: float | None = None) -> list[Any]:
        deadline = None if timeout_s is None else monotonic() + timeout_s
        with self._changed:
            while not all(self._outboxes):
                self._check()
                left = None if deadline is None else deadline - monotonic()
                if left is not None and left <= 0:
                    silent = [rank for rank, outbox in enumerate(self._outboxes) if not outbox]
                    self._failure = RankFailure(f"ranks {silent} did not answer within {timeout_s:g} s")
                    self._hub.fail(str(self._failure))
                    self._changed.notify_all()
                    raise self._failure
                self._changed.wait(left)
            return [pickle.loads(outbox.popleft()) for outbox in self._outboxes]

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        deadline = monotonic() + self._timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - monotonic()))
        stuck = [thread.name for thread in self._threads if thread.is_alive()]
        if stuck:
            raise RankFailure(f"{', '.join(stuck)} did not end within {self._timeout_s:g} s of closing")

    def _run(
        self, backend: InProcessBackend, rank: int, entry: Callable[[RankContext, Any], None], packed: bytes
    ) -> None:
        comm = ThreadCommunicator(self._hub, rank)
        context = RankContext(
            rank=rank,
            size=self._hub.size,
            comm=comm,
            backend=backend,
            receive=lambda: self._take(rank),
            send=lambda message: self._give(rank, message),
        )
        try:
            entry(context, pickle.loads(packed))
            self._end(RankFailure(f"rank {rank} ended before the engine closed the job"))
        except JobClosed:
            self._hub.fail("the job was closed")
        except SplashError as error:
            self._end(error)
        except Exception as error:
            text = f"rank {rank} failed: {type(error).__name__}: {error}\n{traceback.format_exc()}"
            self._end(RankFailure(text))

    def _end(self, failure: SplashError) -> None:
        """A rank is over. Unless the engine closed the job, that is the failure of all of them."""
        with self._changed:
            if self._closed:
                return
            self._failure = self._failure or failure
            self._changed.notify_all()
        self._hub.fail(str(failure))

    def _take(self, rank: int) -> Any:
        with self._changed:
            while not self._inboxes[rank]:
                if self._closed or self._failure:
                    raise JobClosed
                self._changed.wait()
            return pickle.loads(self._inboxes[rank].popleft())

    def _give(self, rank: int, message: Any) -> None:
        packed = pickle.dumps(message, protocol=5)
        with self._changed:
            self._outboxes[rank].append(packed)
            self._changed.notify_all()

    def _check(self) -> None:
        if self._failure:
            raise self._failure
