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
EXIT_CODES = re.compile(r"Exit codes: \[.*\] ([\d,]+)$")
"""Wait statuses in rank order, as `mpiexec -print-all-exitcodes` prints them."""


class Output:
    """The last lines from a pipe."""

    def __init__(self, pipe: IO[bytes] | None) -> None:
        assert pipe is not None
        self._pipe = pipe
        os.set_blocking(pipe.fileno(), False)
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._rest = b""
        self.statuses: list[int] = []
        """How each rank ended, in rank order; 0 also for those that the launcher ended itself."""

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

    def quoted(self) -> str:
        """The last lines, to be put behind an error message; empty if there are none."""
        lines = [f"\n  {line}" for line in self._lines if line]
        return "".join(["\nThe ranks' last output:", *lines]) if lines else ""

    def close(self) -> None:
        self._pipe.close()

    def _keep(self, line: str) -> None:
        if found := EXIT_CODES.search(line):
            self.statuses = [int(status) for status in found[1].split(",")]
        if not LAUNCHERS_OWN.match(line):
            self._lines.append(line)


def in_words(status: int) -> str:
    """A wait status for people."""
    if not os.WIFSIGNALED(status):
        return f"ended with exit code {os.waitstatus_to_exitcode(status)}"
    number = os.WTERMSIG(status)
    who = " (by somebody, or by the kernel when memory ran out)" if number == signal.SIGKILL else ""
    return f"was killed by {signal.Signals(number).name}{who}"
