"""What the launcher and the ranks print: kept in bounds, and read for how a rank died."""

from __future__ import annotations

import os
import re
import signal
from collections import deque
from typing import IO

KEPT_LINES = 100
KEPT_LINE_CHARS = 500
LAUNCHERS_OWN = re.compile(
    r"^(=|YOUR APPLICATION TERMINATED|This typically refers to|Please see the FAQ|\[(proxy|mpiexec)\b)"
)
WHO = re.compile(r"PID (\d+) RUNNING AT")
CODE = re.compile(r"EXIT CODE: (\d+)")
SIGNAL = re.compile(r"EXIT STRING: .*\(signal (\d+)\)")


class Output:
    """The last lines from a pipe."""

    def __init__(self, pipe: IO[bytes] | None) -> None:
        assert pipe is not None
        self._pipe = pipe
        os.set_blocking(pipe.fileno(), False)
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._rest = b""
        self._pid: int | None = None
        self._code: int | None = None
        self._signal: int | None = None

    def fileno(self) -> int:
        return self._pipe.fileno()

    def read(self) -> bool:
        """Take what has been written by now; False at the end of the pipe."""
        try:
            while data := os.read(self._pipe.fileno(), 1 << 16):
                *lines, self._rest = (self._rest + data).split(b"\n")
                self._rest = self._rest[-KEPT_LINE_CHARS:]
                for line in lines:
                    self._keep(line.decode(errors="replace").rstrip()[:KEPT_LINE_CHARS])
        except BlockingIOError:
            return True
        return False

    def verdict(self) -> tuple[int | None, str]:
        """The process that ended first, if the launcher has said so, and how."""
        if self._signal == signal.SIGKILL:
            return self._pid, "was killed by SIGKILL (by somebody, or by the kernel when memory ran out)"
        if self._signal is not None:
            return self._pid, f"was killed by {signal.Signals(self._signal).name}"
        return self._pid, f"ended with exit code {self._code}"

    def quoted(self) -> str:
        """The last lines, to be put behind an error message; empty if there are none."""
        lines = [f"\n  {line}" for line in self._lines if line]
        return "".join(["\nThe ranks' last output:", *lines]) if lines else ""

    def close(self) -> None:
        self._pipe.close()

    def _keep(self, line: str) -> None:
        if self._pid is None and (found := WHO.search(line)):
            self._pid = int(found[1])
        elif self._code is None and (found := CODE.search(line)):
            self._code = int(found[1])
        elif self._signal is None and (found := SIGNAL.search(line)):
            self._signal = int(found[1])
        if not LAUNCHERS_OWN.match(line):
            self._lines.append(line)
