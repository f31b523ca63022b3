"""One rank process: joins MPI, reports to the engine, runs the entry function, ends when the engine does.

Started as `python -m splash_cpu.rank ADDRESS` by `launch.py`. ADDRESS is the engine's abstract socket.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import select
import signal
import socket
import sys
import threading
import traceback
from pkgutil import resolve_name
from time import monotonic
from typing import Any, NoReturn

from splash.core.errors import SplashError
from splash.hal.protocol import JobClosed, RankContext
from splash_cpu.wire import Kind, Reader, frame, peer_uid

PR_SET_PDEATHSIG = 1
LINGER_S = 1e-3
"""How long a rank looks for the next message itself: about twice what the engine needs between two steps. A core
that went to sleep takes longer to wake up than the message takes (measured: 60 µs of a boundary of 750)."""


def main(address: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is the engine's business
    line: Line | None = None
    try:
        world = _join()  # before anything that an engine's death could end: until then MPI's files have names
        line = _connect(address)
        _end_with(line)
        line.send(Kind.HELLO, (world.Get_rank(), os.getpid(), os.getppid()))
        entry, args = line.receive()
        _run(line, world, entry, args)
    except JobClosed:
        _leave(0)
    except BaseException as error:
        known = type(error)(str(error)) if isinstance(error, SplashError) else None
        line = line or _connect(address)
        line.send(Kind.ERROR, (known, f"{type(error).__name__}: {error}\n{traceback.format_exc()}"))
        _leave(1)


def _connect(address: str) -> Line:
    """The line to the engine; ends this process if there is no engine any more."""
    try:
        return Line(address)
    except ConnectionError:
        _leave(1)


class Line:
    """The socket to the engine. Blocks in the kernel while there is nothing to do, after at most `linger_s`."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect("\0" + address)
        if peer_uid(self.socket) != os.getuid():
            raise PermissionError("the engine's socket belongs to another user")
        self.linger_s = 0.0
        self._reader = Reader()
        self._readable = select.poll()
        self._readable.register(self.socket, select.POLLIN | select.POLLHUP)

    def receive(self) -> Any:
        while (found := self._reader.take()) is None:
            self._linger()
            if not self._reader.read(self.socket):
                raise JobClosed
        kind, message = found
        if kind is Kind.CLOSE:
            raise JobClosed
        return message

    def _linger(self) -> None:
        """Look for a message for a moment; whoever else wants the core goes first."""
        until = monotonic() + self.linger_s
        while not self._readable.poll(0) and monotonic() < until:
            os.sched_yield()

    def send(self, kind: Kind, message: Any = None) -> None:
        self.socket.sendall(frame(kind, message))


def _join() -> Any:
    """MPI's communicator of all ranks; afterwards nothing of MPI's is left that has a name."""
    import mpi4py

    mpi4py.rc.thread_level = "funneled"
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    world.Barrier()  # everyone has attached to what the next line removes
    for path in _named_segments():
        with contextlib.suppress(FileNotFoundError):  # another rank was faster
            os.unlink(path)
    return world


def _named_segments() -> set[str]:
    """The shared-memory files that MPI mapped and did not unlink: they would outlive a killed rank."""
    with open("/proc/self/maps", encoding="utf-8") as lines:
        paths = {line.rstrip("\n").partition("/dev/shm/")[2] for line in lines}
    return {
        f"/dev/shm/{path}" for path in paths if path.startswith("mpich_") and not path.endswith(" (deleted)")
    }


def _end_with(line: Line) -> None:
    """End this process at once when the engine or the launcher ends, whatever it is doing."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    hangup = select.poll()
    hangup.register(line.socket, select.POLLRDHUP)

    def watch() -> None:
        hangup.poll()
        os._exit(1)

    threading.Thread(target=watch, name="engine-watch", daemon=True).start()


def _run(line: Line, world: Any, entry: str, args: Any) -> None:
    from splash_cpu.backend import CpuBackend, communicator
    from splash_cpu.probe import num_cores

    function = resolve_name(entry)
    comm = communicator(world)
    line.linger_s = LINGER_S if comm.size <= num_cores() else 0.0
    context = RankContext(
        rank=comm.rank,
        size=comm.size,
        comm=comm,
        backend=CpuBackend(),
        receive=line.receive,
        send=lambda message: line.send(Kind.MESSAGE, message),
    )
    gc.freeze()  # modules stay for ever: a full collection would look at them for 0.25 s
    function(context, args)
    line.send(Kind.ENDED)
    while True:
        line.receive()


def _leave(code: int) -> NoReturn:
    """End without Python's own shutdown, which takes longer than everything else here."""
    if code == 0:
        from mpi4py import MPI

        MPI.Finalize()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1])
