"""Processes that are not this one's children: found, ended and waited for by descriptor, never by a reused id."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from pathlib import Path
from time import monotonic


class Watched:
    """Handles of processes that must be gone in the end."""

    def __init__(self) -> None:
        self._handles: dict[int, int] = {}

    def add(self, pid: int) -> None:
        """Watch `pid`, which is known to live."""
        if pid not in self._handles:
            with contextlib.suppress(ProcessLookupError):
                self._handles[pid] = os.pidfd_open(pid)

    def kill(self) -> None:
        for handle in self._handles.values():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)

    def wait(self, timeout_s: float) -> list[int]:
        """Wait until all have ended; the ids of those that have not."""
        deadline = monotonic() + timeout_s
        ended = select.poll()
        alive = {handle: pid for pid, handle in self._handles.items()}
        for handle in alive:
            ended.register(handle, select.POLLIN)
        while alive and (left := deadline - monotonic()) > 0:
            for handle, _ in ended.poll(left * 1e3):
                ended.unregister(handle)
                del alive[handle]
        return sorted(alive.values())

    def close(self) -> None:
        while self._handles:
            os.close(self._handles.popitem()[1])


def descendants(pid: int) -> list[int]:
    """The children of `pid`, their children, and so on."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            after_name = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            children.setdefault(int(after_name[1]), []).append(int(stat.parent.name))
    found: list[int] = []
    waiting = [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found
