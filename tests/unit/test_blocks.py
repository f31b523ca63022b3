"""What blocks lack on which rank."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from splash.kv.blocks import Block, KVStore
from splash.kv.geometry import PoolGeometry
from splash.kv.pool import PageState
from splash.layout.holders import Topology, holders
from splash.layout.layouts import LAYOUTS, assigned

SHAPES = ((1, 1), (2, 1), (2, 2), (4, 1), (4, 2), (8, 1), (8, 4))
"""Ranks and KV groups."""


@given(st.data())
def test_missing_pages_are_those_of_all_holders(data: st.DataObject) -> None:
    """Red when counting the new blocks by rounds differs from asking for the holders of each, or a copy that is there
    counts."""
    ranks, groups = data.draw(st.sampled_from(SHAPES))
    topo = Topology(ranks, groups)
    store = KVStore(PoolGeometry(200, 64, ranks, 64), topo, 16)
    place = st.builds(assigned, st.sampled_from(tuple(LAYOUTS.values())), st.integers(0, ranks - 1))
    held, wanted = data.draw(place), data.draw(place)
    blocks = [Block() for _ in range(data.draw(st.integers(0, 5)))]
    for index, block in enumerate(blocks):
        store.add_copies(block, index, held, PageState.LIVE)
    first = data.draw(st.integers(0, 7))
    stop = data.draw(st.integers(first, 30))
    need = [0] * ranks
    for index in range(first, stop):
        copies = blocks[index].copies if index < len(blocks) else {}
        for group in range(groups):
            for rank in holders(wanted, index, group, topo):
                need[rank] += (group, rank) not in copies
    assert store.missing(blocks, wanted, first, stop) == need
