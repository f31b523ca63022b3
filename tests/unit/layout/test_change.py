"""What a change of the target moves, against the set difference of every request, page by page."""

from __future__ import annotations

from itertools import permutations

import pytest

from splash.layout.change import Change
from splash.layout.diff import difference, present_holders
from splash.layout.holders import Topology, holders
from splash.layout.layouts import LAYOUTS, Layout, Placement, Projection, assigned
from splash.layout.residency import full_ranks

RANKS, BLOCKS, BLOCK, TOKEN_BYTES, SHARD_BYTES = 4, 16, 8, 96, 1000
PAIRS = list(permutations(LAYOUTS.values(), 2))


def change(old: Layout, new: Layout, groups: int, requests: int = RANKS) -> Change:
    fetches = new.projection is Projection.FULL and old.projection is not Projection.FULL
    return Change(
        ranks=RANKS,
        groups=groups,
        token_bytes=TOKEN_BYTES,
        tokens={(old.placement, new.placement): requests * BLOCKS * BLOCK},
        shards=RANKS - 1 if fetches else 0,
        shard_bytes=SHARD_BYTES,
    )


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize(("old", "new"), PAIRS, ids=[f"{a}-{b}" for a, b in PAIRS])
def test_bytes_are_the_set_difference(old: Layout, new: Layout, groups: int) -> None:
    """Red when a share of REFERENCE §3 is wrong for any of the 20 pairs, with one KV group or several, or when replicas
    are fetched that are there, or not fetched that are not. A request with each owner, whole stripes."""
    topo, page_bytes = Topology(RANKS, groups), BLOCK * TOKEN_BYTES // groups
    received = [0] * RANKS
    for home in range(RANKS):
        present = present_holders(assigned(old, home), BLOCKS, topo)
        pages = difference(present, assigned(new, home), topo).received(RANKS)
        received = [a + b for a, b in zip(received, pages, strict=True)]
    moved = change(old, new, groups)
    assert moved.kv_bytes == pytest.approx(sum(received) / RANKS * page_bytes)
    resident = [set(full_ranks(assigned(at, rank), RANKS)) for at in (old, new) for rank in range(RANKS)]
    fetching = set().union(*resident[RANKS:]) - set().union(*resident[:RANKS])
    assert moved.weight_bytes == len(fetching) / RANKS * (RANKS - 1) * SHARD_BYTES
    assert moved.num_bytes == moved.kv_bytes + moved.weight_bytes


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize(("old", "new"), PAIRS, ids=[f"{a}-{b}" for a, b in PAIRS])
def test_the_peak_is_that_of_requests_that_move_one_by_one(old: Layout, new: Layout, groups: int) -> None:
    """Red when what is held twice is left out, or counted for all requests at once. Balanced: a request has a sister
    with every owner, and they move together."""
    topo, page_bytes, sets = Topology(RANKS, groups), BLOCK * TOKEN_BYTES // groups, 3

    def held(places: set[Placement]) -> float:
        """Pages on a rank, as a mean, of a set of sisters that is in these places at once."""
        layouts = [next(x for x in LAYOUTS.values() if x.placement is place) for place in places]
        return (
            sum(
                len(
                    {
                        rank
                        for layout in layouts
                        for rank in holders(assigned(layout, home), block, group, topo)
                    }
                )
                for home in range(RANKS)
                for block in range(BLOCKS)
                for group in range(groups)
            )
            / RANKS
        )

    here, there = held({old.placement}), held({new.placement})
    twice = held({old.placement, new.placement})
    worst = max((sets - 1 - moved) * here + twice + moved * there for moved in range(sets))
    found = change(old, new, groups, sets * RANKS).peak_bytes(RANKS * BLOCKS * BLOCK)
    assert found == pytest.approx(worst * page_bytes)
