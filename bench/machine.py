"""Where a measurement was made, and whether anything else was running then."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

BUSY_LIMIT = 0.05
"""Share of the cores' time that others may use; more is said in the output, since every figure suffers."""


def provenance() -> dict[str, Any]:
    """Machine, command and date, as every result carries them."""
    import torch

    import splash

    return {
        "machine": f"{cpu_name()}, {num_cores()} cores, {platform.system()} {platform.release()}",
        "command": " ".join(["python -m", f"bench.{Path(sys.argv[0]).stem}", *sys.argv[1:]]),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": {
            "splash": splash.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }


def idleness(seconds: float = 2.0) -> dict[str, Any]:
    """What others do while this process sleeps: busy share per core, load average, and whether that is idle."""
    before = _busy_and_total()
    time.sleep(seconds)
    after = _busy_and_total()
    busy = [round((b1 - b0) / max(1, t1 - t0), 3) for (b0, t0), (b1, t1) in zip(before, after, strict=True)]
    return {"idle": max(busy) <= BUSY_LIMIT, "busy_per_core": busy, "load_average": os.getloadavg()}


def warn_if_busy(state: dict[str, Any]) -> None:
    if not state["idle"]:
        print(
            f"WARNING: the machine is not idle (busy {state['busy_per_core']}, load {state['load_average'][0]:.2f}):"
            f" these figures are too bad",
            file=sys.stderr,
        )


class Bystanders:
    """What processes that this one did not start take of the cores' time, from one look to the next."""

    def __init__(self) -> None:
        self._before = _others_and_total()

    def share(self) -> float:
        """Of all cores, since the last look."""
        before, self._before = self._before, _others_and_total()
        return max(0.0, (self._before[0] - before[0]) / max(1, self._before[1] - before[1]))


def num_cores() -> int:
    return len(os.sched_getaffinity(0))


def cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _others_and_total() -> tuple[int, int]:
    """Ticks since the boot."""
    cores = _busy_and_total()
    return sum(busy for busy, _ in cores) - _own_ticks(), sum(total for _, total in cores)


def _own_ticks() -> int:
    """Of this process and of those that it started, and they."""
    parents, ticks = {}, {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            fields = file.read_text().rpartition(")")[2].split()
            pid = int(file.parent.name)
            parents[pid], ticks[pid] = int(fields[1]), int(fields[11]) + int(fields[12])
    own = {os.getpid()}
    while found := {pid for pid, parent in parents.items() if parent in own} - own:
        own |= found
    return sum(ticks.get(pid, 0) for pid in own)


def _busy_and_total() -> list[tuple[int, int]]:
    """Per core, in ticks since the boot."""
    found = []
    for line in Path("/proc/stat").read_text().splitlines():
        if line.startswith("cpu") and line[3].isdigit():
            ticks = [int(x) for x in line.split()[1:9]]
            found.append((sum(ticks) - ticks[3] - ticks[4], sum(ticks)))
    return found
