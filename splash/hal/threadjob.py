"""A job whose ranks are threads: an entry on each of them, and messages to and from the engine."""

from __future__ import annotations

import pickle
import threading
import traceback
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any

from splash.core.errors import RankFailure, SplashError
from splash.hal.protocol import Backend, JobClosed, RankContext
from splash.hal.threads import Hub, ThreadCommunicator


class ThreadJob:
    """The `RankJob` of threads. Messages are pickled, so that nothing is shared that processes would not share."""

    def __init__(
        self,
        backend: Backend,
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
        self, backend: Backend, rank: int, entry: Callable[[RankContext, Any], None], packed: bytes
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
