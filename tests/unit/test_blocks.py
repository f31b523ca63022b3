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


@given(st.data())
def test_what_is_left_retires_and_the_rest_lives(data: st.DataObject) -> None:
    """Red when a copy that the new place needs is given up, one that it does not need is kept, or a pinned page comes
    free; also with blocks that came after the old place was left."""
    ranks, groups = data.draw(st.sampled_from(SHAPES))
    topo = Topology(ranks, groups)
    store = KVStore(PoolGeometry(200, 64, ranks, 64), topo, 16, prefer_slots=data.draw(st.booleans()))
    place = st.builds(assigned, st.sampled_from(tuple(LAYOUTS.values())), st.integers(0, ranks - 1))
    old, new = data.draw(place), data.draw(place)
    blocks = [Block() for _ in range(data.draw(st.integers(0, 20)))]
    num_old = data.draw(st.integers(0, len(blocks)))
    for index, block in enumerate(blocks):
        if index < num_old:
            store.add_copies(block, index, old, PageState.LIVE)
            store.add_copies(block, index, new, PageState.RESERVED)
        else:
            store.add_copies(block, index, new, PageState.LIVE)
    before = [dict(block.copies) for block in blocks]
    store.leave(blocks, old, new, last_step=3)
    left = []
    for index, block in enumerate(blocks):
        needed = {(g, rank) for g in range(groups) for rank in holders(new, index, g, topo)}
        assert block.copies == {key: page for key, page in before[index].items() if key in needed}
        assert all(store.pools[r].state(page) is PageState.LIVE for (_, r), page in block.copies.items())
        left += [(rank, page) for (g, rank), page in before[index].items() if (g, rank) not in needed]
    store.check(blocks)
    pinned = data.draw(st.lists(st.sampled_from(left), unique=True)) if left else []
    for rank, page in pinned:
        store.pools[rank].pin(page)
    assert not store.collect(2)
    assert sum(store.unread(3)) == len(left) - len(pinned)
    assert store.collect(3) == (len(left) > len(pinned))
    assert store.num_retiring == len(pinned)
    for rank, page in pinned:
        store.pools[rank].unpin(page)
    store.collect(3)
    store.check(blocks)
    assert store.num_retiring == 0
