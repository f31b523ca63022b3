"""What MPI leaves in /dev/shm when its processes are killed while they start; later it has no names there.

Ranks unlink these files as soon as all have mapped them (`rank._join`), so only a start that was cut short
leaves any. Removed are files that appeared since this job's launch, belong to this user and are mapped by
no process.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

FOLDER = Path("/dev/shm")
PATTERN = "mpich_shm_*"


class Leftovers:
    def __init__(self) -> None:
        self._before = self._names()

    def remove(self) -> None:
        """Call when all processes of the job have ended."""
        new = self._names() - self._before
        for name in new - mapped_names(new):
            with contextlib.suppress(FileNotFoundError, PermissionError):
                os.unlink(FOLDER / name)

    def _names(self) -> set[str]:
        found = set()
        for path in FOLDER.glob(PATTERN):
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_uid == os.getuid():
                    found.add(path.name)
        return found


def mapped_names(names: set[str]) -> set[str]:
    """Those of `names` that some process has mapped."""
    used: set[str] = set()
    if not names:
        return used
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            text = maps.read_text(encoding="utf-8", errors="replace")
            used |= {name for name in names if f"{FOLDER}/{name}" in text}
    return used
