"""The part of a step's inputs that stays while the same rows run in the same layouts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

import torch

from splash.exec.mirror import Mirror, Sequence
from splash.exec.states import recurrent_rows
from splash.layout.exchange import Routes, Widths, counts_a, counts_b, may_ride, route
from splash.layout.holders import Topology
from splash.layout.layouts import Assignment
from splash.layout.rows import Method, Span, ordered
from splash.layout.writers import row_share
from splash.model.attention.index import Index
from splash.model.attention.rows import OutputExchange, QueryExchange
from splash.model.recurrent import RecurrentRows
from splash.sched.step import StepPlan

KEPT_FRAMES = 64


@dataclass(frozen=True, slots=True)
class RankShape:
    """What decides a rank's part in any step, beside the plan."""

    rank: int
    topo: Topology
    block_size: int
    widths: Widths
    is_mla: bool
    """Every rank computes every row's latent, so no new KV travels."""
    pool: int = 1
    """Tokens of an index key."""
    top_k: int | None = None
    """Tokens that an indexer lets a row attend over; None: attention is dense."""


class Frame(NamedTuple):
    """Which rows go where, for one rank. Names as in `AttentionRows`."""

    routes: Routes
    sequences: list[Sequence]
    """Of each span."""
    here: tuple[int, ...]
    """Spans that attend here with all heads, in order."""
    num_own: int
    num_here: int
    num_returning: int
    num_full_paged: int
    full_queries: Index
    full_kv: Index
    full_kv_places: dict[int, int]
    """Row to its place in `full_kv`."""
    queries: QueryExchange
    """Exchange A of queries alone."""
    may_ride: bool
    """New KV may have to travel, depending on positions."""
    output_exchange: OutputExchange | None
    finish_by_head: Index | None
    finish_full: Index | None
    sampled: list[Sequence]
    """Requests that get a token, in the order of the result."""
    sample_rows: Index
    recurrent: RecurrentRows | None


Places = tuple[tuple[Assignment, Assignment | None], ...]
"""Where the request of each row is, and where it is staged to."""


class Frames:
    """Makes a rank's frames. Of decodes all but their sequences follows from their places, and is kept: requests come,
    go and flip back, and then the same places are there again."""

    def __init__(self, shape: RankShape) -> None:
        self._shape = shape
        self._of_places = lru_cache(maxsize=KEPT_FRAMES)(self._frame_of_places)

    def make(self, plan: StepPlan, mirror: Mirror) -> Frame:
        if plan.chunks:
            return self._frame_of_spans(plan, mirror)
        sequences = [mirror.sequences[request] for request in plan.decodes]
        frame = self._of_places(tuple([(s.present, s.next) for s in sequences]))
        states = recurrent_rows(frame.routes, [s.state for s in sequences])
        return frame._replace(sequences=sequences, sampled=sequences, recurrent=states)

    def _frame_of_places(self, places: Places) -> Frame:
        """One row each, of no request and at no position."""
        spans = [Span(-1, 0, 1, present, staged, Method.EXCHANGE, True) for present, staged in places]
        return _frame(route(spans, self._shape.topo.ranks), slice(0, len(spans)), self._shape)

    def _frame_of_spans(self, plan: StepPlan, mirror: Mirror) -> Frame:
        routes = route(ordered(_spans(plan, mirror)), self._shape.topo.ranks)
        sequences = [mirror.sequences[span.request] for span in routes.spans]
        sampled, sample_rows = _sampled(plan, mirror, routes)
        return _frame(routes, sample_rows, self._shape)._replace(
            sequences=sequences,
            sampled=sampled,
            recurrent=recurrent_rows(routes, [s.state for s in sequences]),
        )


def _frame(routes: Routes, sample_rows: Index, shape: RankShape) -> Frame:
    """What follows from the routes; its sequences are to be filled in."""
    rank, ranks = shape.rank, shape.topo.ranks
    own, everywhere, striped = map(routes.rows, (routes.own, routes.to_all, routes.full_striped))
    owned, stay = [*map(routes.rows, routes.to_owner)], routes.rows(routes.full_local[rank])
    shares = _shares(routes, rank)
    full_kv: list[int] = []
    if not shape.is_mla:
        full_kv = [*striped, *stay, *routes.rows(routes.gathered_full)]
    here = (*routes.to_owner[rank], *routes.to_all, *routes.full_striped, *routes.full_local[rank])
    returning = len(owned[rank]) + len(everywhere) + len(striped)
    by_head = [*own, *routes.rows(routes.gathered), *chain(*owned), *everywhere, *striped]
    return Frame(
        routes=routes,
        sequences=[],
        here=here,
        num_own=len(own),
        num_here=returning + len(stay),
        num_returning=returning,
        num_full_paged=len(striped) + len(stay),
        full_queries=index_of(striped + stay + shares),
        full_kv=index_of(full_kv),
        full_kv_places={row: place for place, row in enumerate(full_kv)},
        queries=_queries(routes, [rows + everywhere for rows in owned], shape),
        may_ride=not shape.is_mla and ranks > 1 and any(may_ride(s.present, s.next) for s in routes.spans),
        output_exchange=_output_exchange(routes, shape),
        finish_by_head=index_of(by_head) if by_head else None,
        finish_full=index_of(stay + shares) if stay or shares else None,
        sampled=[],
        sample_rows=sample_rows,
        recurrent=None,
    )


def routes_at(frame: Frame, starts: list[int]) -> Routes:
    """The frame's routes with spans where they are in this step; `starts` are the positions of their first rows."""
    spans = tuple(
        span if span.start == start else span._replace(start=start)
        for span, start in zip(frame.routes.spans, starts, strict=True)
    )
    return frame.routes._replace(spans=spans)


def index_of(rows: list[int]) -> Index:
    """A slice if the rows are contiguous, else their numbers."""
    if not rows:
        return slice(0, 0)
    if rows[-1] - rows[0] + 1 == len(rows) and rows == list(range(rows[0], rows[-1] + 1)):
        return slice(rows[0], rows[-1] + 1)
    return torch.tensor(rows, dtype=torch.int64)


def _spans(plan: StepPlan, mirror: Mirror) -> Iterator[Span]:
    for request in plan.decodes:
        s = mirror.sequences[request]
        yield Span(request, s.num_tokens - 1, 1, s.present, s.next, Method.EXCHANGE, True)
    for chunk in plan.chunks:
        s = mirror.sequences[chunk.request]
        yield Span(chunk.request, chunk.start, chunk.count, s.present, s.next, chunk.method, False)


def _sampled(plan: StepPlan, mirror: Mirror, routes: Routes) -> tuple[list[Sequence], Index]:
    """Decodes in plan order, then the chunks that reach the end of what is known; and their last rows."""
    last_rows = {
        span.request: start + span.count - 1 for span, start in zip(routes.spans, routes.starts, strict=True)
    }
    requests = list(plan.decodes)
    for chunk in plan.chunks:
        if chunk.start + chunk.count == mirror.sequences[chunk.request].num_tokens:
            requests.append(chunk.request)
    sequences = [mirror.sequences[request] for request in requests]
    return sequences, index_of([last_rows[request] for request in requests])


def _shares(routes: Routes, rank: int) -> list[int]:
    """Rows of gathered full spans that `rank` computes."""
    rows = []
    for index in routes.gathered_full:
        share = row_share(rank, routes.spans[index].count, routes.ranks)
        rows += [routes.starts[index] + offset for offset in share]
    return rows


def _queries(routes: Routes, sent: list[list[int]], shape: RankShape) -> QueryExchange:
    """`sent`: rows for each destination."""
    rank, counts = shape.rank, counts_a(routes, (), shape.widths)
    return QueryExchange(
        rows=index_of([*chain(*sent)]),
        sent=tuple(map(len, sent)),
        received=len(sent[rank]),
        entries=(),
        entries_received=(0,) * routes.ranks,
        send_counts=tuple(counts[rank]),
        recv_counts=tuple([row[rank] for row in counts]),
    )


def _output_exchange(routes: Routes, shape: RankShape) -> OutputExchange | None:
    if not routes.has_outputs:
        return None
    counts = counts_b(routes, shape.widths)
    return OutputExchange(
        owned=routes.count(routes.to_owner[shape.rank]),
        partial=routes.count(routes.to_all) + routes.count(routes.full_striped),
        owned_from=tuple(routes.count(indices) for indices in routes.to_owner),
        send_counts=tuple(counts[shape.rank]),
        recv_counts=tuple(row[shape.rank] for row in counts),
    )
