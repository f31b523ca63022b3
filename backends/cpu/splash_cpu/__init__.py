"""The CPU port: ranks are MPI processes, pools are shared memory, attention is torch on one thread a rank.

Importing this module imports neither torch nor mpi4py.
"""

from __future__ import annotations

from splash.hal.caps import DeviceInfo
from splash.hal.protocol import Backend, BackendSpec


def _load() -> Backend:
    from splash_cpu.backend import CpuBackend

    return CpuBackend()


def _probe() -> list[DeviceInfo]:
    from splash_cpu.probe import probe

    return probe()


SPEC = BackendSpec(
    name="cpu",
    aliases=("host", "x86"),
    summary="rank processes on this machine's CPU cores (MPI, shared memory)",
    loader=_load,
    probe=_probe,
)
