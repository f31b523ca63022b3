"""What travels in a layer: bytes against REFERENCE §2, and who finishes what against `writers`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splash.layout.exchange import (
    FULL_GATHERED,
    FULL_LOCAL,
    Widths,
    dataflow,
    gather_parts,
    gathers_whole,
    layer_collectives,
    rides,
    route,
    widths,
)
from splash.layout.holders import Topology, holders, local_blocks
from splash.layout.layouts import CP, DCP, DOP, DP, LAYOUTS, TP, Assignment, Layout
from splash.layout.rows import Method, Span, ordered
from splash.layout.writers import row_share, writers
from splash.spec.known import known_model
from splash.spec.model import MLASpec

BLOCK = 16
HIDDEN = 1024
assignments = st.builds(Assignment, st.sampled_from(list(LAYOUTS.values())), st.integers(0, 3))


def mla(heads: int, ranks: int, *, latent: int = 512, rope: int = 64) -> Widths:
    kv = latent + rope
    return Widths(heads // ranks, query=kv, output=latent, lse=1, kv=kv, hidden=HIDDEN, history=kv)


def gqa(heads: int, kv_heads: int, ranks: int, *, dim: int = 128) -> Widths:
    kv = 2 * kv_heads // min(kv_heads, ranks) * dim
    return Widths(heads // ranks, query=dim, output=dim, lse=1, kv=kv, hidden=HIDDEN, history=kv)


def decodes(layout: Layout, ranks: int, each: int) -> list[Span]:
    """`each` decode rows of every home; the blocks they write are spread evenly over the stripes."""
    return ordered(
        Span(i, i * BLOCK, 1, Assignment(layout, i % ranks), None, Method.EXCHANGE, True)
        for i in range(each * ranks)
    )


def received(spans: list[Span], topo: Topology, w: Widths, *, has_rides: bool) -> list[float]:
    """Elements per rank of one layer, closings apart."""
    routes = route(spans, topo.ranks)
    ridden = rides(routes, topo, BLOCK) if has_rides else []
    listed = layer_collectives(routes, ridden, topo, BLOCK, 1 << 20, w)
    assert [c.op for c in listed[-2:]] == ["all_reduce", "all_reduce"]
    return [sum(c.received(rank, topo.ranks) for c in listed[:-2]) for rank in range(topo.ranks)]


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_mla_bytes_are_those_of_the_table(ranks: int) -> None:
    """Red when an exchange carries more or less than REFERENCE §2 says, on any rank."""
    heads, d_c, d_r, each = 16, 512, 64, 4
    n, f, w, topo = each * ranks, 1 - 1 / ranks, mla(heads, ranks), Topology(ranks, 1)
    table = {
        TP: 0.0,
        DP: 0.0,
        DOP: f / ranks * n * heads * (2 * d_c + d_r),
        DCP: f * n * heads * (2 * d_c + d_r) + f * n * heads,
        CP: f * n * heads * d_c + f * n * heads,
    }
    for layout, wanted in table.items():
        assert received(decodes(layout, ranks, each), topo, w, has_rides=False) == [wanted] * ranks, layout


@pytest.mark.parametrize(("ranks", "kv_heads"), [(2, 2), (4, 4), (4, 8), (8, 8)])
def test_gqa_bytes_are_those_of_the_table(ranks: int, kv_heads: int) -> None:
    """Red when new keys and values travel from the wrong rank or twice. G = T here, as the table assumes."""
    heads, dim, each = 16, 128, 4
    n, f, topo = each * ranks, 1 - 1 / ranks, Topology(ranks, min(kv_heads, ranks))
    wanted = f / ranks * n * (2 * heads * dim + 2 * kv_heads * dim)
    w = gqa(heads, kv_heads, ranks)
    assert received(decodes(DOP, ranks, each), topo, w, has_rides=True) == [wanted] * ranks
    assert received(decodes(TP, ranks, each), topo, w, has_rides=True) == [0] * ranks
    assert received(decodes(DP, ranks, each), topo, w, has_rides=True) == [0] * ranks


@pytest.mark.parametrize("layout", [DOP, DCP, CP])
def test_a_gathered_history_is_received_once(layout: Layout) -> None:
    """Red when a rank gets its own tokens again, or the chunk's. REFERENCE §2: f s (d_c + d_r), mean over ranks."""
    ranks, history = 4, 64 * BLOCK
    span = Span(0, history, 100, Assignment(layout, 1), None, Method.GATHER, False)
    got = received([span], Topology(ranks, 1), mla(16, ranks), has_rides=False)
    assert sum(got) / ranks == (1 - 1 / ranks) * history * (512 + 64)


def test_closing_bytes() -> None:
    """REFERENCE §2: 2 f N d each."""
    routes = route(decodes(TP, 4, 3), 4)
    closing = layer_collectives(routes, [], Topology(4, 1), BLOCK, 64, mla(16, 4))[-1]
    assert closing.received(0, 4) == 2 * 0.75 * 12 * HIDDEN


def test_a_down_projection_is_gathered_if_ranks_have_equal_parts_of_it() -> None:
    """Red when parts do not make up the whole, or a rank count that does not divide it is not left alone."""
    spec, ranks = known_model("deepseek-v3"), 4
    att = spec.attention
    assert isinstance(att, MLASpec)
    w = widths(spec, ranks, 2, divided=True)
    first = layer_collectives(route(decodes(TP, ranks, 3), ranks), [], Topology(ranks, 1), BLOCK, 64, w)[0]
    assert first.received(1, ranks) == 0.75 * 12 * (att.q_lora_rank + att.latent_dim)
    assert widths(spec, 5, 2, divided=True).down == 0
    assert widths(spec, 1, 2, divided=True).down == widths(spec, ranks, 2).down == 0


def test_a_pure_local_step_exchanges_nothing() -> None:
    for layout in (TP, DP):
        routes = route(decodes(layout, 4, 2), 4)
        assert not routes.has_queries
        assert not routes.has_outputs


@given(
    st.lists(
        st.tuples(assignments, st.sampled_from(list(Method)), st.integers(1, 9), st.booleans()), min_size=1
    ),
    st.sampled_from([1, 2, 4]),
)
def test_writers_partition_rows_and_heads(
    drawn: list[tuple[Assignment, Method, int, bool]], ranks: int
) -> None:
    """Red when the pipeline finishes a (row, head) on another rank than `writers` names, twice, or not at all."""
    heads = 8
    spans = ordered(
        Span(i, 40, count, Assignment(where.layout, where.home % ranks), None, method, decode)
        for i, (where, method, count, decode) in enumerate(drawn)
    )
    routes = route(spans, ranks)
    written: dict[tuple[int, int], list[int]] = {}
    for rank in range(ranks):
        own_heads = range(heads * rank // ranks, heads * (rank + 1) // ranks)
        for span, first in zip(spans, routes.starts, strict=True):
            flow = dataflow(span.present, span.method, ranks)
            if flow is FULL_LOCAL:
                offsets, mine = range(span.count if span.present.home == rank else 0), range(heads)
            elif flow is FULL_GATHERED:
                offsets, mine = row_share(rank, span.count, ranks), range(heads)
            else:
                offsets, mine = range(span.count), own_heads
            assert flow.finishes_full == (flow in (FULL_LOCAL, FULL_GATHERED))
            for offset in offsets:
                for head in mine:
                    written.setdefault((first + offset, head), []).append(rank)
    for span, first in zip(spans, routes.starts, strict=True):
        for offset in range(span.count):
            for head in range(heads):
                wanted = writers(
                    span.present, span.method, head, offset, span.count, ranks=ranks, num_heads=heads
                )
                assert written.pop((first + offset, head)) == [wanted]
    assert not written


@given(
    assignments,
    st.none() | assignments,
    st.integers(0, 70),
    st.integers(1, 40),
    st.sampled_from([(2, 2), (4, 1), (4, 2), (4, 4)]),
)
def test_every_holder_gets_the_new_kv(
    present: Assignment, staged: Assignment | None, start: int, count: int, shape: tuple[int, int]
) -> None:
    """Red when a holder, present or next, neither computes a new key nor is sent it exactly once (GQA)."""
    topo = Topology(*shape)
    present = Assignment(present.layout, present.home % topo.ranks)
    if staged is not None:
        staged = Assignment(staged.layout, staged.home % topo.ranks)
    span = Span(0, start, count, present, staged, Method.EXCHANGE, False)
    sent: dict[tuple[int, int, int], int] = {}
    for ride in rides(route([span], topo.ranks), topo, BLOCK):
        assert _computes(ride.src, ride.group, present, topo)
        assert ride.src != ride.dst
        for row in range(ride.row, ride.row + ride.num_rows):
            sent[row, ride.group, ride.dst] = sent.get((row, ride.group, ride.dst), 0) + 1
    for row in range(count):
        for group in range(topo.groups):
            block = (start + row) // BLOCK
            need = set(holders(present, block, group, topo))
            need |= set(holders(staged, block, group, topo)) if staged else set()
            for rank in need:
                computed = _computes(rank, group, present, topo)
                assert sent.pop((row, group, rank), 0) == (0 if computed else 1)
    assert not sent


def _computes(rank: int, group: int, at: Assignment, topo: Topology) -> bool:
    if at.layout is CP:
        return True
    return rank == at.home if at.layout is DP else topo.group_of(rank) == group


@given(assignments, st.integers(0, 200), st.integers(1, 64), st.sampled_from([1, 2, 4]))
def test_gathered_parts_cover_the_history(at: Assignment, start: int, bound: int, ranks: int) -> None:
    """Red when a part skips or repeats a block, miscounts the last one, or outgrows its bound."""
    at = Assignment(at.layout if at.layout is not TP else DOP, at.home % ranks)
    topo = Topology(ranks, 1)
    span = Span(0, start, 3, at, None, Method.GATHER, False)
    parts = gather_parts(span, topo, BLOCK, bound)
    assert sum(sum(part.tokens) for part in parts) == start
    assert [p.first for p in parts] == [0, *(p.stop for p in parts)][: len(parts)]
    for part in parts:
        assert sum(part.tokens) <= max(bound, BLOCK)
        for rank, tokens in enumerate(part.tokens):
            mine = [b for b in local_blocks(at, rank, 0, part.stop, topo) if b >= part.first]
            assert tokens == sum(min(BLOCK, start - b * BLOCK) for b in mine)


def test_gathers_of_groups() -> None:
    assert gathers_whole(Topology(4, 1), full=False)
    assert gathers_whole(Topology(4, 4), full=True)
    assert not gathers_whole(Topology(4, 2), full=False)
