"""Layouts as functions: coverage of holders and writers, differences that apply, capacity, residency."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splash.core.errors import ConfigError
from splash.layout.capacity import PoolRoom, pages_per_block, request_tokens, total_tokens
from splash.layout.diff import difference, present_holders
from splash.layout.holders import Topology, holders, local_blocks
from splash.layout.layouts import LAYOUTS, TP, Assignment, Projection, layout_named, with_projection
from splash.layout.residency import shards
from splash.layout.rows import Method
from splash.layout.writers import row_rank, row_share, writers

ranks_groups = st.sampled_from([(1, 1), (2, 1), (2, 2), (4, 1), (4, 2), (4, 4), (8, 2), (8, 8)])
layouts = st.sampled_from(list(LAYOUTS.values()))


@st.composite
def placed(draw: st.DrawFn) -> tuple[Topology, Assignment, Assignment, int]:
    topo = Topology(*draw(ranks_groups))
    homes = st.integers(0, topo.ranks - 1)
    a, b = (Assignment(draw(layouts), draw(homes)) for _ in range(2))
    return topo, a, b, draw(st.integers(0, 19))


@given(placed())
def test_holders_cover_every_block_and_group(case: tuple[Topology, Assignment, Assignment, int]) -> None:
    topo, at, _, num_blocks = case
    for group in range(topo.groups):
        local = [set(local_blocks(at, r, group, num_blocks, topo)) for r in range(topo.ranks)]
        for block in range(num_blocks):
            held = holders(at, block, group, topo)
            assert held
            assert set(held) == {r for r in range(topo.ranks) if block in local[r]}


@given(placed())
def test_applying_a_difference_gives_the_target(case: tuple[Topology, Assignment, Assignment, int]) -> None:
    topo, a, b, num_blocks = case
    present = present_holders(a, num_blocks, topo)
    diff = difference(present, b, topo)
    have = {(i, g): set(x) for i, groups in enumerate(present) for g, x in enumerate(groups)}
    for copy in diff.copies:
        assert copy.src in have[copy.block, copy.group]
    for copy in diff.copies:
        have[copy.block, copy.group].add(copy.dst)
    for block, group, rank in diff.releases:
        have[block, group].remove(rank)
    assert have == {
        (i, g): set(holders(b, i, g, topo)) for i in range(num_blocks) for g in range(topo.groups)
    }
    assert difference(present, a, topo).copies == ()
    assert difference(present, a, topo).releases == ()
    assert sum(diff.received(topo.ranks)) == len(diff.copies)


@given(placed())
def test_copies_between_placements_repeat_with_the_ranks(
    case: tuple[Topology, Assignment, Assignment, int],
) -> None:
    """Red when the source of a copy depends on more than its block modulo the ranks: stagings work out one round."""
    topo, a, b, num_blocks = case
    one_round = difference(present_holders(a, topo.ranks, topo), b, topo).copies
    repeated = [
        copy._replace(block=block)
        for block in range(num_blocks)
        for copy in one_round
        if copy.block == block % topo.ranks
    ]
    assert difference(present_holders(a, num_blocks, topo), b, topo).copies == tuple(repeated)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_pages_received_are_those_of_the_reference(groups: int) -> None:
    """REFERENCE §3 with G groups, T=4: into by_head f K/G; by_head to owner or striped (1-1/G) K/T;
    owner <-> striped f K/T, balanced over four requests of 16 blocks, one owner each."""
    ranks, blocks = 4, 16
    topo, f = Topology(ranks, groups), 1 - 1 / ranks
    total = ranks * blocks * groups  # pages of K

    def mean(old: str, new: str) -> float:
        received = 0
        for home in range(ranks):
            present = present_holders(Assignment(layout_named(old), home), blocks, topo)
            received += len(difference(present, Assignment(layout_named(new), home), topo).copies)
        return received / ranks

    for new in ("dop", "dcp"):
        assert mean(new, "tp") == f * total / groups
        assert mean("tp", new) == (1 - 1 / groups) * total / ranks
    assert mean("dop", "dcp") == mean("dcp", "dop") == f * total / ranks
    assert mean("dop", "dp") == mean("cp", "dcp") == 0


def test_one_request_is_uneven() -> None:
    """One request, 8 blocks, T=4: striped to owner receives [6, 0, 0, 0] pages."""
    topo = Topology(4, 1)
    present = present_holders(Assignment(layout_named("dcp")), 8, topo)
    assert difference(present, Assignment(layout_named("dop"), 0), topo).received(4) == [6, 0, 0, 0]


@given(
    placed(),
    st.sampled_from([Method.LOCAL, Method.EXCHANGE, Method.GATHER]),
    st.integers(1, 9),
    st.integers(1, 3),
)
def test_writers_partition_rows_and_heads(
    case: tuple[Topology, Assignment, Assignment, int], method: Method, count: int, heads: int
) -> None:
    """Every (row, head) has one writer, and a rank writes heads it can compute."""
    topo, at, _, _ = case
    num_heads = heads * topo.ranks
    for offset in range(count):
        by_rank = [
            writers(at, method, head, offset, count, ranks=topo.ranks, num_heads=num_heads)
            for head in range(num_heads)
        ]
        assert all(0 <= r < topo.ranks for r in by_rank)
        if at.layout.projection is Projection.SHARDED:
            assert by_rank == [head // heads for head in range(num_heads)]
        assert offset in row_share(row_rank(offset, count, topo.ranks), count, topo.ranks)
    assert sum(len(row_share(r, count, topo.ranks)) for r in range(topo.ranks)) == count


def test_toggles_keep_the_placement() -> None:
    for layout in LAYOUTS.values():
        if layout is not TP:
            other = Projection.FULL if layout.projection is Projection.SHARDED else Projection.SHARDED
            toggled = with_projection(layout, other)
            assert toggled.placement is layout.placement
            assert with_projection(toggled, layout.projection) is layout


def test_residency_follows_the_requests() -> None:
    dp, cp, tp = (layout_named(x) for x in ("dp", "cp", "tp"))
    assert shards(1, [Assignment(tp), Assignment(dp, 0)], 4) == {1}
    assert shards(0, [Assignment(dp, 0)], 4) == {0, 1, 2, 3}
    assert shards(3, [Assignment(cp, 0)], 4) == {0, 1, 2, 3}


def test_unknown_layout_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"unknown layout 'pp'; known: tp, dp, cp, dop, dcp"):
        layout_named("pp")
    with pytest.raises(ConfigError, match="3 KV groups do not divide 4 ranks"):
        Topology(4, 3)


def test_capacity_of_the_five_layouts() -> None:
    """MLA, T=4, 100 pages with the own shard and 40 with all: tp holds each token T times."""
    room, topo = PoolRoom(own=100, full=40), Topology(4, 1)
    tokens = {name: total_tokens(x, room, topo, 16) for name, x in LAYOUTS.items()}
    assert tokens == {"tp": 1600, "dp": 4 * 640, "cp": 4 * 640, "dop": 6400, "dcp": 6400}
    one = {name: request_tokens(x, room, topo, 16) for name, x in LAYOUTS.items()}
    assert one == {"tp": 1600, "dp": 640, "cp": 4 * 640, "dop": 1600, "dcp": 6400}
    assert [pages_per_block(x, Topology(4, 2)) for x in LAYOUTS.values()] == [4, 2, 2, 2, 2]
    with_groups = total_tokens(layout_named("dop"), room, Topology(4, 4), 16)
    assert with_groups == total_tokens(TP, room, Topology(4, 4), 16), "with G = T, dop gains nothing over tp"
