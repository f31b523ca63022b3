"""Where a measurement was made, and whether anything else was running then."""

from __future__ import annotations

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


def num_cores() -> int:
    return len(os.sched_getaffinity(0))


def cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _busy_and_total() -> list[tuple[int, int]]:
    """Per core, in ticks since the boot."""
    found = []
    for line in Path("/proc/stat").read_text().splitlines():
        if line.startswith("cpu") and line[3].isdigit():
            ticks = [int(x) for x in line.split()[1:9]]
            found.append((sum(ticks) - ticks[3] - ticks[4], sum(ticks)))
    return found
