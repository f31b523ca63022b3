"""The plan's copies as runs of bytes between pools."""

from __future__ import annotations

from splash.hal.protocol import ByteCopy
from splash.kv.slots import MemoryPlan
from splash.sched.step import PageCopy, ShardCopy

Run = tuple[int, int, int]
"""(source offset, destination offset, bytes)"""


def byte_copy(copy: PageCopy | ShardCopy, memory: MemoryPlan) -> ByteCopy:
    """What `copy` means in bytes."""
    if isinstance(copy, ShardCopy):
        start = memory.geometry.slot_offset(copy.shard) + copy.first
        return ByteCopy(copy.id, copy.shard, copy.dst_rank, ((start, start, copy.stop - copy.first),))
    return ByteCopy(copy.id, copy.src_rank, copy.dst_rank, _page_runs(copy, memory))


def _page_runs(copy: PageCopy, memory: MemoryPlan) -> tuple[Run, ...]:
    """One run for a whole page, else one for each section: of its complete entries, where tokens are pooled."""
    pages = memory.pages
    src, dst = copy.src_page * pages.page_bytes, copy.dst_page * pages.page_bytes
    if copy.first == 0 and copy.stop == pages.block_size:
        return ((src, dst, pages.page_bytes),)
    runs: list[Run] = []
    for section in pages.sections:
        field = section.field
        first, stop = copy.first // field.pool, copy.stop // field.pool
        if first < stop:
            skip = section.offset + first * field.entry_bytes
            runs.append((src + skip, dst + skip, (stop - first) * field.entry_bytes))
    return tuple(runs)
