"""What this machine offers to the CPU port, and what is missing."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import sys
import sysconfig
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from splash.core.errors import PortError
from splash.hal.caps import DeviceInfo

CGROUPS = Path("/sys/fs/cgroup")


def num_cores() -> int:
    """The cores that this process may use, one at least: its affinity, and the CPU time of its control groups."""
    return max(1, int(min([len(os.sched_getaffinity(0)), *map(_cores, _limits("cpu.max"))])))


def memory_bytes() -> int:
    """The memory that this process may use: the machine's, or less where a control group has a limit."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([machine, *(int(limit) for limit in _limits("memory.max"))])


def free_bytes() -> int | None:
    """The memory that this process could be given now: what the kernel calls available, or less where a control group
    has less left. None: not known."""
    left = [_available(), *(_left(group) for group in _groups())]
    known = [max(0, size) for size in left if size is not None]
    return min(known, default=None)


def _available(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Of the machine, without swapping."""
    with contextlib.suppress(OSError):
        for line in meminfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def _left(group: Path) -> int | None:
    """Below a control group's limit; the files that it has cached can be dropped. None without a limit."""
    limit = _setting(group, "memory.max")
    if limit is None:
        return None
    used = int(_setting(group, "memory.current") or 0)
    lines = (_setting(group, "memory.stat") or "").splitlines()
    cached = sum(
        int(line.split()[1]) for line in lines if line.split()[0] in ("active_file", "inactive_file")
    )
    return int(limit) - used + cached


def _cores(cpu_max: str) -> float:
    """Of a quota and a period, in microseconds."""
    quota, period = cpu_max.split()
    return int(quota) / int(period)


def _limits(name: str) -> list[str]:
    """What the process's control group and those above it set as `name`; none without a limit."""
    found = [_setting(group, name) for group in _groups()]
    return [limit for limit in found if limit is not None]


def _groups(*, root: Path = CGROUPS, of: Path = Path("/proc/self/cgroup")) -> list[Path]:
    """The folders of the process's control group (version 2) and of those above it."""
    try:
        lines = of.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    own = next((line.removeprefix("0::").strip("/") for line in lines if line.startswith("0::")), None)
    if own is None:
        return []
    folder = root / own
    return [group for group in (folder, *folder.parents) if group.is_relative_to(root)]


def _setting(group: Path, name: str) -> str | None:
    """A control group's file; None where it has none, or sets no limit."""
    with contextlib.suppress(OSError):
        text = (group / name).read_text(encoding="utf-8").strip()
        return None if not text or text.startswith("max") else text
    return None


def probe() -> list[DeviceInfo]:
    """The machine as one device. PortError names what is missing and what to install."""
    if not sys.platform.startswith("linux"):
        raise PortError(
            f"the cpu port shares memory with memfd, which {sys.platform} lacks; it runs on Linux"
        )
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        raise PortError(
            f"the cpu port watches its ranks with pidfd_open, which fails here ({error.strerror});"
            " Linux has it since 5.3"
        ) from None
    for package in ("torch", "mpi4py"):
        if find_spec(package) is None:
            raise PortError(f"the cpu port needs the package {package}: pip install {package}")
    mpiexec()
    name = f"{_cpu_name()}, {num_cores()} cores"
    return [DeviceInfo(0, name, memory_bytes(), platform.machine(), free_bytes())]


def mpiexec() -> str:
    """The launcher that belongs to this interpreter's MPI library; a system's only if there is no other."""
    for path in _own_launchers():
        if os.access(path, os.X_OK):
            return str(path)
    found = shutil.which("mpiexec.hydra") or shutil.which("mpiexec")
    if found is None:
        raise PortError("the cpu port needs mpiexec to start its ranks: pip install mpich")
    return found


def _own_launchers() -> list[Path]:
    try:
        files = metadata.files("mpich") or []
    except metadata.PackageNotFoundError:
        files = []
    shipped = [Path(str(file.locate())) for file in files if file.name == "mpiexec"]
    return [*shipped, Path(sysconfig.get_path("scripts")) / "mpiexec"]


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
