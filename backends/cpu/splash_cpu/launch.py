"""The engine's end of a rank job: starts mpiexec, exchanges messages, notices deaths, leaves nothing behind.

Everything happens in the engine's own calls (no thread): `send`, `receive` and `close` run one event loop
over the ranks' sockets, the launcher's output and the launcher's end.
"""

from __future__ import annotations

import os
import secrets
import selectors
import socket
import subprocess
import sys
from collections import deque
from contextlib import ExitStack
from time import monotonic
from typing import Any

from splash.core.env import with_variables
from splash.core.errors import RankFailure, SplashError
from splash_cpu.leftovers import Leftovers
from splash_cpu.output import Output, in_words
from splash_cpu.probe import mpiexec
from splash_cpu.processes import Watched, descendants
from splash_cpu.wire import Kind, Reader, frame, peer_uid

START_TIMEOUT_S = 120.0
CLOSE_TIMEOUT_S = 5.0
KILL_TIMEOUT_S = 5.0
VERDICT_TIMEOUT_S = 2.0
"""How long to wait for the launcher's word on how a rank died."""


class MpiRankJob:
    """The `RankJob` of MPI processes on this machine. Starting returns at once; the ranks report by and by."""

    def __init__(self, size: int, entry: str, args: Any, *, threads: int) -> None:
        self._connections: list[Link] = []
        self._links: list[Link | None] = [None] * size
        start = frame(Kind.START, (entry, args))
        self._unsent: list[list[bytes]] = [[start] for _ in range(size)]
        """What each rank will be sent when it says hello."""
        self._inboxes: list[deque[Any]] = [deque() for _ in range(size)]
        self._failure: SplashError | None = None
        self._bad_news: list[tuple[int | None, SplashError | None, str]] = []
        self._ended_ranks: list[int] = []
        self._launcher_ended = False
        self._ending = False
        self._over = False
        """Nothing is left. Between `_ending` and this an interrupt may have cut the end short."""
        self._leftovers = Leftovers()
        self._ranks = Watched()
        self._launchers = Watched()
        self._launcher_handle = -1
        with ExitStack() as undo:  # whoever is not given the job cannot close it
            self._selector = undo.enter_context(selectors.DefaultSelector())
            self._listener, address = _listen(size)
            undo.callback(self._listener.close)
            self._started = monotonic()
            self._launcher = _start(size, address, threads)
            self._output = Output(self._launcher.stdout)
            undo.callback(self._end)
            self._watch()
            undo.pop_all()

    def _watch(self) -> None:
        """Whom the event loop hears: ranks that say hello, the launcher's output, and its end."""
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._output, selectors.EVENT_READ, self._read_output)
        self._launcher_handle = os.pidfd_open(self._launcher.pid)
        self._selector.register(self._launcher_handle, selectors.EVENT_READ, self._note_launcher)

    @property
    def size(self) -> int:
        return len(self._links)

    def send(self, message: Any) -> None:
        self._check()
        packed = frame(Kind.MESSAGE, message)
        for rank, link in enumerate(self._links):
            if link is None:
                self._unsent[rank].append(packed)
            else:
                self._write(link, packed)
        while any(link is not None and link.unsent for link in self._links):
            self._pump(None)
            self._check()
        os.sched_yield()  # ranks that share their cores with the engine begin first

    def receive(self, timeout_s: float | None = None) -> list[Any]:
        self._check()
        deadline = None if timeout_s is None else monotonic() + timeout_s
        while not all(self._inboxes):
            now = monotonic()
            if deadline is not None and now >= deadline:
                silent = [rank for rank, inbox in enumerate(self._inboxes) if not inbox]
                raise self._fail(RankFailure(f"ranks {silent} did not answer within {timeout_s:g} s"))
            absent = [rank for rank, link in enumerate(self._links) if link is None]
            if absent and now >= self._started + START_TIMEOUT_S:
                text = f"ranks {absent} did not start within {START_TIMEOUT_S:g} s"
                raise self._fail(RankFailure(text + self._output.quoted()))
            limits = [deadline] if deadline is not None else []
            limits += [self._started + START_TIMEOUT_S] if absent else []
            self._pump(min(limits) - now if limits else None)
            self._check()
        return [inbox.popleft() for inbox in self._inboxes]

    def close(self) -> None:
        """Idempotent; after a call that was interrupted it ends what that one left."""
        try:
            if not self._ending:
                self._ask_to_end()
        finally:
            self._end()

    def _ask_to_end(self) -> None:
        closing = frame(Kind.CLOSE)
        for link in self._links:
            if link is not None:
                self._write(link, closing)
        if all(self._links):  # else some do not listen yet
            self._await_launcher(CLOSE_TIMEOUT_S)

    def _check(self) -> None:
        """Raise what has gone wrong so far, after ending what is left of the job."""
        if self._failure is not None:
            raise self._failure
        if self._ending:
            raise RankFailure("the rank job was closed")
        if self._bad_news:
            rank, known, text = self._bad_news[0]
            who = "a rank" if rank is None else f"rank {rank}"
            raise self._fail(known or RankFailure(f"{who} failed: {text.rstrip()}"))
        if self._ended_ranks or self._launcher_ended:
            raise self._fail(RankFailure(self._verdict()))

    def _fail(self, failure: SplashError) -> SplashError:
        self._failure = failure
        self._end()
        return failure

    def _verdict(self) -> str:
        """Which rank died and how, with the launcher's help."""
        self._await_launcher(VERDICT_TIMEOUT_S / 4)
        self._ranks.kill()  # it may be waiting for the other ranks
        self._await_launcher(VERDICT_TIMEOUT_S)
        self._output.read()
        failed = {rank: status for rank, status in enumerate(self._output.statuses) if status}
        first = next((rank for rank in [*self._ended_ranks, *failed] if rank in failed), None)
        code = self._launcher.poll()
        if first is not None:
            text = f"rank {first} {in_words(failed[first])}"
        elif code is not None and code < 0:
            when = "while the ranks ran" if all(self._links) else "before all ranks had started"
            text = f"the launcher (mpiexec) {in_words(-code)} {when}"
        elif self._ended_ranks:
            text = f"rank {self._ended_ranks[0]} ended unexpectedly"
        else:
            text = f"the ranks did not start: mpiexec ended with code {code}"
        return text + self._output.quoted()

    def _await_launcher(self, timeout_s: float) -> None:
        deadline = monotonic() + timeout_s
        while not self._launcher_ended and (left := deadline - monotonic()) > 0:
            self._pump(left)

    def _end(self) -> None:
        """Whatever is left of the job goes: processes, names, descriptors. Every part may be done again."""
        if self._over:
            return
        self._ending = True
        self._selector.close()  # first what takes descriptors: watching processes needs some
        self._output.close()
        self._listener.close()
        if self._launcher.returncode is None:  # else its number may be another's by now
            for pid in [self._launcher.pid, *descendants(self._launcher.pid)]:
                self._launchers.add(pid)
        self._ranks.kill()
        self._launchers.kill()
        self._launcher.wait()
        alive = self._ranks.wait(KILL_TIMEOUT_S) + self._launchers.wait(KILL_TIMEOUT_S)
        if not all(self._links):
            self._leftovers.remove()
        self._ranks.close()
        self._launchers.close()
        handle, self._launcher_handle = self._launcher_handle, -1
        if handle >= 0:
            os.close(handle)
        for link in self._connections:
            link.socket.close()
        self._over = True
        if alive:
            raise RankFailure(f"processes {alive} of the rank job cannot be ended")

    def _pump(self, timeout_s: float | None) -> None:
        for key, _ in self._selector.select(timeout_s):
            key.data()

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        if peer_uid(connection) != os.getuid():
            connection.close()
            return
        connection.setblocking(False)
        link = Link(connection)
        self._connections.append(link)
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._serve(link))

    def _serve(self, link: Link) -> None:
        """The socket can be read, written, or is at its end."""
        if link.unsent:
            self._write(link, b"")
        try:
            open_ = link.reader.read(link.socket)
        except BlockingIOError:
            return
        except ConnectionError:
            open_ = False
        if not open_:
            self._selector.unregister(link.socket)
            if link.rank is not None:
                self._ended_ranks.append(link.rank)
            return
        while (found := link.reader.take()) is not None:
            self._handle(link, *found)

    def _handle(self, link: Link, kind: Kind, message: Any) -> None:
        if kind is Kind.MESSAGE:
            assert link.rank is not None
            self._inboxes[link.rank].append(message)
        elif kind is Kind.HELLO:
            link.rank, link.pid, parent = message
            self._ranks.add(link.pid)
            self._launchers.add(parent)
            self._links[link.rank] = link
            self._write(link, b"".join(self._unsent[link.rank]))
            self._unsent[link.rank].clear()
        elif kind is Kind.ERROR:
            self._bad_news.append((link.rank, *message))
        elif kind is Kind.ENDED:
            text = "its entry function ended before the engine closed the job"
            self._bad_news.append((link.rank, None, text))

    def _write(self, link: Link, data: bytes) -> None:
        """Send now what the socket takes; the event loop sends the rest."""
        link.unsent += data
        if not link.unsent:
            return
        try:
            sent = link.socket.send(link.unsent)
        except BlockingIOError:
            sent = 0
        except ConnectionError:
            link.unsent.clear()  # its end is read from the socket
            return
        del link.unsent[:sent]
        events = selectors.EVENT_READ | selectors.EVENT_WRITE if link.unsent else selectors.EVENT_READ
        if events != link.events:
            link.events = events
            self._selector.modify(link.socket, events, lambda: self._serve(link))

    def _read_output(self) -> None:
        if not self._output.read():
            self._selector.unregister(self._output)

    def _note_launcher(self) -> None:
        self._selector.unregister(self._launcher_handle)
        self._launcher_ended = True


class Link:
    """One rank's connection; its rank is known once it has said hello."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.reader = Reader()
        self.unsent = bytearray()
        self.events = selectors.EVENT_READ
        self.rank: int | None = None
        self.pid = 0


def _listen(size: int) -> tuple[socket.socket, str]:
    """An abstract socket: it has no file that could stay behind."""
    address = f"splash-{os.getpid()}-{secrets.token_hex(8)}"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("\0" + address)
    listener.listen(size)
    listener.setblocking(False)
    return listener, address


def _start(size: int, address: str, threads: int) -> subprocess.Popen[bytes]:
    """mpiexec in a session of its own, so that a terminal's Ctrl-C reaches the engine alone."""
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    env = with_variables(
        PYTHONPATH=path,
        OMP_NUM_THREADS=str(threads),
        OPENBLAS_NUM_THREADS=str(threads),
        MKL_NUM_THREADS=str(threads),
        THP_MEM_ALLOC_ENABLE="1",  # torch's large tensors, and
        GLIBC_TUNABLES="glibc.malloc.hugetlb=1",  # everything else on huge pages
        GOMP_SPINCOUNT="10000",  # threads that wait give way after some 100 µs; by default they burn a core
        HWLOC_XMLFILE=os.devnull,  # else the launcher writes a topology file to /tmp, and may leave it there
        UCX_TLS="sm,self",  # one machine: no listening on networks
        UCX_HANDLE_ERRORS="none",  # a crash shows as what it is
    )
    launcher = [mpiexec(), "-launcher", "fork", "-localhost", "localhost", "-n", str(size)]
    launcher += ["-prepend-rank", "-print-all-exitcodes"]
    rank = [sys.executable, "-X", "faulthandler", "-m", "splash_cpu.rank", address]
    return subprocess.Popen(
        launcher + rank,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env=env,
        bufsize=0,
    )
