"""Which spans select, who offers how many candidates: against holders, block by block, and against a plain sort."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from splash.layout.exchange import route
from splash.layout.holders import Topology, holders
from splash.layout.layouts import LAYOUTS, Assignment, Placement
from splash.layout.rows import Method, Span, ordered
from splash.layout.selection import counts_candidates, selecting, tokens_held

BLOCK = 4
TOP_K = 6

spans = st.builds(
    Span,
    request=st.integers(0, 1000),
    start=st.integers(0, 60),
    count=st.integers(1, 9),
    present=st.builds(Assignment, st.sampled_from(list(LAYOUTS.values())), st.integers(0, 3)),
    next=st.none(),
    method=st.sampled_from([Method.EXCHANGE, Method.GATHER]),
    decode=st.booleans(),
)


def held_blocks(span: Span, rank: int, topo: Topology) -> list[int]:
    """Positions below the span's end that lie on `rank`, from `holders` alone."""
    return [p for p in range(span.end) if rank in holders(span.present, p // BLOCK, 0, topo)]


@given(st.lists(spans, max_size=6), st.sampled_from([2, 4]))
def test_every_long_span_selects_in_one_place(drawn: list[Span], ranks: int) -> None:
    """Red when a span beyond top-k attends to everything, selects twice, or a short one selects at all."""
    drawn = [s for s in drawn if s.present.home < ranks]
    routes, topo = route(ordered(drawn), ranks), Topology(ranks, 1)
    found = selecting(routes, topo, BLOCK, TOP_K)
    long = [i for i, span in enumerate(routes.spans) if span.end > TOP_K]
    if found is None:
        assert not long
        return
    owned = [i for indices in found.by_owner for i in indices]
    assert sorted([*found.own, *owned, *found.shared]) == long
    assert found.spans == set(long)
    for home, indices in enumerate(found.by_owner):
        assert all(routes.spans[i].present.home == home for i in indices)
    for i in found.own:
        assert all(len(held_blocks(routes.spans[i], r, topo)) == routes.spans[i].end for r in range(ranks))
    rows = sum(routes.spans[i].count for i in found.shared)
    assert counts_candidates(routes, found) == [[rows * n] * ranks for n in found.offers]


@given(spans, st.sampled_from([1, 2, 4]))
def test_tokens_held_are_those_of_the_holders(span: Span, ranks: int) -> None:
    """Red when a partial last block is counted on the wrong rank, or not cut."""
    at = Assignment(span.present.layout, span.present.home % ranks)
    topo = Topology(ranks, 1)
    span = Span(0, span.start, span.count, at, None, span.method, False)
    for rank in range(ranks):
        assert tokens_held(at, rank, span.end, topo, BLOCK) == len(held_blocks(span, rank, topo))


@given(
    st.lists(spans.filter(lambda s: s.end > TOP_K), min_size=1, max_size=3),
    st.sampled_from([2, 4]),
    st.randoms(use_true_random=False),
)
def test_offers_are_enough_for_the_best_of_all(drawn: list[Span], ranks: int, draw) -> None:
    """Red when a rank offers so few tokens that one of the best can be missing (scores with many ties)."""
    drawn = [s for s in drawn if s.present.home < ranks]
    routes, topo = route(ordered(drawn), ranks), Topology(ranks, 1)
    found = selecting(routes, topo, BLOCK, TOP_K)
    for i in found.shared if found else ():
        span = routes.spans[i]
        assert span.present.layout.placement is not Placement.BY_HEAD
        scores = [draw.randrange(5) for _ in range(span.end)]
        for last in range(span.start, span.end):
            offered = []
            for rank, count in enumerate(found.offers):
                mine = [p for p in held_blocks(span, rank, topo) if p <= last]
                offered += sorted(mine, key=lambda p: (-scores[p], p))[:count]
            best = sorted(range(last + 1), key=lambda p: (-scores[p], p))[:TOP_K]
            assert sorted(offered, key=lambda p: (-scores[p], p))[:TOP_K] == best
