"""Fields of which several tokens share an entry: sections, views and copies of them."""

from __future__ import annotations

import pytest
import torch

from splash.core.errors import ConfigError
from splash.exec.copies import byte_copy
from splash.exec.pages import page_fields
from splash.kv.geometry import PoolGeometry
from splash.kv.sections import Field, page_format
from splash.kv.slots import MemoryPlan, ShardFormat
from splash.sched.step import PageCopy

LATENT, INDEX = Field("latent", 32, 2, "bfloat16"), Field("index", 32, 2, "bfloat16", pool=4)
PAGES = page_format([[], [LATENT, INDEX], [], [LATENT]], 16)


def _runs(first: int, stop: int) -> tuple[tuple[int, int, int], ...]:
    geometry = PoolGeometry(9, PAGES.page_bytes, 2, PAGES.page_bytes)
    memory = MemoryPlan(PAGES, ShardFormat((), PAGES.page_bytes), geometry)
    copy = PageCopy(id=1, src_rank=0, dst_rank=1, src_page=0, dst_page=1, first=first, stop=stop)
    return byte_copy(copy, memory).runs


def test_views_have_an_entry_for_each_pool_and_nothing_for_empty_layers() -> None:
    """Red when layers that cache nothing shift those behind them, or entries are counted as tokens."""
    fields = page_fields(torch.zeros(3 * PAGES.page_bytes, dtype=torch.uint8), PAGES)
    assert [[tuple(view.shape) for view in layer] for layer in fields] == [
        [],
        [(3, 16, 32), (3, 4, 32)],
        [],
        [(3, 16, 32)],
    ]


def test_pieces_of_a_page_copy_every_complete_entry() -> None:
    """Red when an entry that lies across two pieces is copied by neither, or an incomplete one is copied."""
    copied: set[int] = set()
    index = PAGES.sections[1]
    for first, stop in ((0, 6), (6, 15)):
        for source, target, size in _runs(first, stop):
            assert target - source == PAGES.page_bytes
            if index.offset <= source < index.offset + 4 * index.field.entry_bytes:
                copied |= set(range(source, source + size))
    assert copied == set(range(index.offset, index.offset + 3 * index.field.entry_bytes))


def test_blocks_hold_whole_pools() -> None:
    """Red when a pool can lie across two pages."""
    with pytest.raises(ConfigError, match="blocks of 6 tokens do not hold whole pools of 4"):
        page_format([[INDEX]], 6)
