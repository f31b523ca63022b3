"""Memory that all ranks map: anonymous files, found through /proc, gone with the last process that has them."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os

import torch

from splash.core.errors import CapacityError
from splash.hal.protocol import Communicator

MADV_POPULATE_WRITE = 23
"""Of Linux 5.14; Python's mmap does not name it."""


def share(comm: Communicator, num_bytes: int, *, name: str, populated: bool = False) -> list[mmap.mmap]:
    """Collective. Every rank makes `num_bytes` of zeros; all of them, mapped here, in rank order.

    Pages take memory when they are touched first, or at once if they shall be `populated`: also in this rank's view of
    its peers', so that no first touch lies in the way of a step. Huge pages are asked for where the kernel offers them.
    """
    own = os.memfd_create(f"splash-{name}-{comm.rank}", os.MFD_CLOEXEC)
    try:
        os.ftruncate(own, num_bytes)
        where = comm.all_gather(torch.tensor([os.getpid(), own], dtype=torch.int64)).tolist()
        segments = [_map(pid, fd, num_bytes) for pid, fd in where]
        if populated:
            _populate(segments[comm.rank])
        comm.barrier()  # nobody closes its descriptor before all have opened it
    finally:
        os.close(own)
    if populated:
        for rank, segment in enumerate(segments):
            if rank != comm.rank:
                _populate(segment)
    return segments


def _populate(segment: mmap.mmap) -> None:
    """Give every page its memory; a kernel before 5.14 does not know the advice, and waits for touches. CapacityError
    if there is not so much memory."""
    try:
        segment.madvise(MADV_POPULATE_WRITE)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise CapacityError(
                f"no memory for a pool of {len(segment) >> 20} MiB ({error.strerror}); lower --kv-pages or --pool-mib"
            ) from None


def _map(pid: int, fd: int, num_bytes: int) -> mmap.mmap:
    opened = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
    try:
        segment = mmap.mmap(opened, num_bytes)
    finally:
        os.close(opened)
    with contextlib.suppress(OSError):  # a kernel without huge pages refuses the advice
        segment.madvise(mmap.MADV_HUGEPAGE)
    return segment
