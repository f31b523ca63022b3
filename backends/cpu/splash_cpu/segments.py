"""Memory that all ranks map: anonymous files, found through /proc, gone with the last process that has them."""

from __future__ import annotations

import contextlib
import mmap
import os

import torch

from splash.hal.protocol import Communicator


def share(comm: Communicator, num_bytes: int, *, name: str) -> list[mmap.mmap]:
    """Collective. Every rank makes `num_bytes` of zeros; all of them, mapped here, in rank order.

    Pages take memory when they are touched first. Huge pages are asked for where the kernel offers them.
    """
    own = os.memfd_create(f"splash-{name}-{comm.rank}", os.MFD_CLOEXEC)
    try:
        os.ftruncate(own, num_bytes)
        where = comm.all_gather(torch.tensor([os.getpid(), own], dtype=torch.int64)).tolist()
        segments = [_map(pid, fd, num_bytes) for pid, fd in where]
        comm.barrier()  # nobody closes its descriptor before all have opened it
    finally:
        os.close(own)
    return segments


def _map(pid: int, fd: int, num_bytes: int) -> mmap.mmap:
    opened = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
    try:
        segment = mmap.mmap(opened, num_bytes)
    finally:
        os.close(opened)
    with contextlib.suppress(OSError):  # a kernel without huge pages refuses the advice
        segment.madvise(mmap.MADV_HUGEPAGE)
    return segment
