"""Ranks as threads that meet: a communicator that checks what all of them must do alike.

Nothing hangs: a difference, a timeout or an exception in one rank is an exception in all of them, with the first
reason.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from splash.core.errors import RankFailure

R = TypeVar("R")


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
