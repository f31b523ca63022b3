"""From a plan to the index tensors of a step: built once, used by every layer.

What depends only on which requests run and how (`Frame`) is kept while steps are alike; positions, pages and
tokens are looked up in every step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from splash.exec.mirror import Mirror, Sequence
from splash.hal.protocol import Attention, SeqRows
from splash.layout.exchange import (
    Collective,
    Ride,
    Routes,
    Widths,
    counts_a,
    counts_b,
    gather_parts,
    layer_collectives,
    may_ride,
    rides,
    route,
)
from splash.layout.holders import Topology
from splash.layout.rows import Method, Span, ordered
from splash.layout.writers import row_share
from splash.model.attention.rows import (
    Appends,
    AttentionRows,
    Gather,
    HistoryPart,
    Index,
    OutputExchange,
    QueryExchange,
)
from splash.model.rope import RopeRows, RopeTable
from splash.sched.step import StepPlan


class StepInputs(NamedTuple):
    tokens: torch.Tensor
    """int64 [N]"""
    rows: AttentionRows
    sampled: list[Sequence]
    """Requests that get a token, in the order of the result."""
    sample_rows: Index
    """Their rows."""
    routes: Routes
    ridden: list[Ride]
    """New KV that travels between ranks (GQA)."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The part of a step's inputs that stays while the same rows run in the same layouts."""

    routes: Routes
    sequences: list[Sequence]
    """Of each span."""
    here: tuple[int, ...]
    """Spans that attend here with all heads, in order."""
    num_here: int
    num_returning: int
    num_own: int
    full_queries: Index
    num_full_paged: int
    full_kv: Index
    full_kv_places: dict[int, int]
    """Row to its place in `full_kv`."""
    queries_sent: Index
    queries_sent_counts: tuple[int, ...]
    queries_received: int
    may_ride: bool
    output_exchange: OutputExchange | None
    finish_by_head: Index | None
    finish_full: Index | None
    sampled: list[Sequence]
    sample_rows: Index


class InputBuilder:
    """Builds a rank's inputs. `gather_tokens` bounds the workspace of gathered histories."""

    def __init__(
        self,
        *,
        mirror: Mirror,
        topo: Topology,
        widths: Widths,
        rope: RopeTable,
        attention: Attention,
        is_mla: bool,
        gather_tokens: int,
    ) -> None:
        self._mirror = mirror
        self._rank = mirror.rank
        self._topo = topo
        self._widths = widths
        self._rope = rope
        self._attention = attention
        self._is_mla = is_mla
        self._gather_tokens = gather_tokens
        self._block_size = mirror.block_size
        self._own_group = topo.group_of(self._rank)
        self._kept: tuple[tuple[object, ...], Frame] | None = None

    def build(self, plan: StepPlan) -> StepInputs:
        frame = self._frame(plan)
        spans = frame.routes.spans
        if not plan.chunks:
            starts = [s.num_tokens - 1 for s in frame.sequences]
            positions = np.array(starts, dtype=np.int64)
            tokens = np.array([s.tokens[p] for s, p in zip(frame.sequences, starts, strict=True)])
        else:
            starts = [span.start for span in spans]
            positions = np.concatenate([np.arange(span.start, span.end) for span in spans])
            tokens = np.concatenate(
                [s.tokens[span.start : span.end] for s, span in zip(frame.sequences, spans, strict=True)]
            )
        ridden = self._rides(frame, starts)
        rows = self._rows(frame, starts, ridden, torch.from_numpy(positions))
        return StepInputs(
            torch.from_numpy(tokens), rows, frame.sampled, frame.sample_rows, frame.routes, ridden
        )

    def collectives(self, inputs: StepInputs) -> list[Collective]:
        """What every rank enters in each layer of this step."""
        return layer_collectives(
            inputs.routes, inputs.ridden, self._topo, self._block_size, self._gather_tokens, self._widths
        )

    # ---- what stays

    def _frame(self, plan: StepPlan) -> Frame:
        if plan.chunks or plan.decode_method is Method.GATHER:  # depends on positions
            return self._make_frame(plan)
        key = (self._mirror.version, plan.decodes, plan.decode_method)
        if self._kept is None or self._kept[0] != key:
            self._kept = key, self._make_frame(plan)
        return self._kept[1]

    def _make_frame(self, plan: StepPlan) -> Frame:
        spans = ordered(self._spans(plan))
        routes = route(spans, self._topo.ranks)
        sequences = [self._mirror.sequences[span.request] for span in spans]
        rank, rows, count = self._rank, routes.rows, routes.count
        shares = self._shares(routes)
        full_kv = (
            []
            if self._is_mla
            else rows((*routes.full_striped, *routes.full_local[rank], *routes.gathered_full))
        )
        everywhere = rows(routes.to_all)
        sent = [rows(indices) + everywhere for indices in routes.to_owner]
        here = (*routes.to_owner[rank], *routes.to_all, *routes.full_striped, *routes.full_local[rank])
        stay = rows(routes.full_local[rank])
        by_head = rows((*routes.own, *routes.gathered))
        by_head += [r for indices in routes.to_owner for r in rows(indices)]
        by_head += rows((*routes.to_all, *routes.full_striped))
        sampled, sample_rows = self._sampled(plan, routes)
        return Frame(
            routes=routes,
            sequences=sequences,
            here=here,
            num_here=count(here),
            num_returning=count(here) - len(stay),
            num_own=count(routes.own),
            full_queries=_index(rows(routes.full_striped) + stay + shares),
            num_full_paged=count(routes.full_striped) + len(stay),
            full_kv=_index(full_kv),
            full_kv_places={row: place for place, row in enumerate(full_kv)},
            queries_sent=_index([r for part in sent for r in part]),
            queries_sent_counts=tuple(map(len, sent)),
            queries_received=len(sent[rank]),
            may_ride=not self._is_mla
            and self._topo.ranks > 1
            and any(may_ride(span.present, span.next) for span in spans),
            output_exchange=self._output_exchange(routes),
            finish_by_head=_index(by_head) if by_head else None,
            finish_full=_index(stay + shares) if stay or shares else None,
            sampled=sampled,
            sample_rows=sample_rows,
        )

    def _spans(self, plan: StepPlan) -> Iterator[Span]:
        for request in plan.decodes:
            s = self._mirror.sequences[request]
            yield Span(request, s.num_tokens - 1, 1, s.present, s.next, plan.decode_method, True)
        for chunk in plan.chunks:
            s = self._mirror.sequences[chunk.request]
            yield Span(chunk.request, chunk.start, chunk.count, s.present, s.next, chunk.method, False)

    def _sampled(self, plan: StepPlan, routes: Routes) -> tuple[list[Sequence], Index]:
        """Decodes in plan order, then the chunks that reach the end of what is known."""
        last_rows = {
            span.request: start + span.count - 1
            for span, start in zip(routes.spans, routes.starts, strict=True)
        }
        requests = list(plan.decodes)
        for chunk in plan.chunks:
            if chunk.start + chunk.count == self._mirror.sequences[chunk.request].num_tokens:
                requests.append(chunk.request)
        rows = [last_rows[request] for request in requests]
        return [self._mirror.sequences[request] for request in requests], _index(rows)

    def _shares(self, routes: Routes) -> list[int]:
        """Rows of gathered full spans that this rank computes."""
        rows = []
        for index in routes.gathered_full:
            share = row_share(self._rank, routes.spans[index].count, self._topo.ranks)
            rows += [routes.starts[index] + offset for offset in share]
        return rows

    def _output_exchange(self, routes: Routes) -> OutputExchange | None:
        if not routes.has_outputs:
            return None
        counts = counts_b(routes, self._widths)
        return OutputExchange(
            owned=routes.count(routes.to_owner[self._rank]),
            partial=routes.count(routes.to_all) + routes.count(routes.full_striped),
            owned_from=tuple(routes.count(indices) for indices in routes.to_owner),
            send_counts=tuple(counts[self._rank]),
            recv_counts=tuple(row[self._rank] for row in counts),
        )

    # ---- what changes with every step

    def _rows(
        self, frame: Frame, starts: list[int], ridden: list[Ride], positions: torch.Tensor
    ) -> AttentionRows:
        routes = frame.routes
        arrivals = self._arrivals(frame, ridden)
        rope = self._rope.at(positions)
        return AttentionRows(
            num_rows=routes.num_rows,
            num_sharded=routes.num_sharded,
            num_own=frame.num_own,
            full_queries=frame.full_queries,
            num_full_paged=frame.num_full_paged,
            full_kv=frame.full_kv,
            rope=rope,
            rope_sharded=_select(rope, slice(0, routes.num_sharded), routes.num_rows),
            rope_full_queries=_select(rope, frame.full_queries, routes.num_rows),
            rope_full_kv=_select(rope, frame.full_kv, routes.num_rows),
            appends=self._appends(frame, starts, arrivals),
            query_exchange=self._query_exchange(frame, ridden),
            own_seqs=self._own_seqs(frame, starts),
            num_here=frame.num_here,
            here_seqs=self._here_seqs(frame, starts),
            gathers=tuple(self._gathers(frame)),
            output_exchange=frame.output_exchange,
            num_returning=frame.num_returning,
            finish_by_head=frame.finish_by_head,
            finish_full=frame.finish_full,
        )

    def _rides(self, frame: Frame, starts: list[int]) -> list[Ride]:
        """New KV that other ranks must be sent in this step (GQA)."""
        if not frame.may_ride:
            return []
        spans = tuple(
            span if span.start == start else replace(span, start=start)
            for span, start in zip(frame.routes.spans, starts, strict=True)
        )
        return rides(replace(frame.routes, spans=spans), self._topo, self._block_size)

    def _arrivals(self, frame: Frame, ridden: list[Ride]) -> dict[tuple[int, int], int]:
        """(row, group) to the entry that it becomes on this rank, after all entries computed here."""
        place = frame.routes.num_sharded + len(frame.full_kv_places) * self._topo.groups
        arrivals: dict[tuple[int, int], int] = {}
        for ride in sorted((r for r in ridden if r.dst == self._rank), key=lambda r: r.src):
            for row in range(ride.row, ride.row + ride.num_rows):
                arrivals[row, ride.group] = place
                place += 1
        return arrivals

    def _query_exchange(self, frame: Frame, ridden: list[Ride]) -> QueryExchange | None:
        if not ridden and not frame.routes.has_queries:
            return None
        rank, ranks = self._rank, range(self._topo.ranks)
        counts = counts_a(frame.routes, ridden, self._widths)
        picked: list[list[int]] = [[] for _ in ranks]
        arriving = [0 for _ in ranks]
        for ride in ridden:
            if ride.src == rank:
                picked[ride.dst] += [
                    self._entry(frame, row, ride.group) for row in range(ride.row, ride.row + ride.num_rows)
                ]
            if ride.dst == rank:
                arriving[ride.src] += ride.num_rows
        return QueryExchange(
            rows=frame.queries_sent,
            sent=frame.queries_sent_counts,
            received=frame.queries_received,
            entries=tuple(torch.tensor(p, dtype=torch.int64) for p in picked) if ridden else (),
            entries_received=tuple(arriving),
            send_counts=tuple(counts[rank]),
            recv_counts=tuple(row[rank] for row in counts),
        )

    def _entry(self, frame: Frame, row: int, group: int) -> int:
        """Where the new KV of (row, group), computed here, lies among this rank's entries."""
        if self._is_mla or row < frame.routes.num_sharded:
            return row
        return frame.routes.num_sharded + frame.full_kv_places[row] * self._topo.groups + group

    def _appends(self, frame: Frame, starts: list[int], arrivals: dict[tuple[int, int], int]) -> Appends:
        """Every new token to each page of this rank that is to have it, now or next."""
        entries: list[int] = []
        pages: list[int] = []
        offsets: list[int] = []
        size = self._block_size
        for sequence, span, start, row in zip(
            frame.sequences, frame.routes.spans, starts, frame.routes.starts, strict=True
        ):
            position, end = start, start + span.count
            while position < end:
                block, offset = divmod(position, size)
                count = min(size - offset, end - position)
                for group, page in sequence.targets_of(block):
                    for i in range(count):
                        known = arrivals.get((row + i, group)) if arrivals else None
                        entries.append(self._entry(frame, row + i, group) if known is None else known)
                        pages.append(page)
                        offsets.append(offset + i)
                position += count
                row += count
        where = np.array((pages, offsets), dtype=np.int64)
        return Appends(_index(entries), torch.from_numpy(where[0]), torch.from_numpy(where[1]))

    def _own_seqs(self, frame: Frame, starts: list[int]) -> object:
        """Own heads over the own group's pages: the first rows."""
        if not frame.num_own:
            return None
        seqs: list[SeqRows] = []
        for index in frame.routes.own:
            self._read(seqs, frame, index, starts[index], self._own_group, frame.routes.starts[index])
        return self._attention.prepare(seqs, self._block_size)

    def _here_seqs(self, frame: Frame, starts: list[int]) -> object:
        """All heads over all groups' pages, group after group of the rows that attend here."""
        if not frame.num_here:
            return None
        seqs: list[SeqRows] = []
        for group in range(self._topo.groups):
            row = group * frame.num_here
            for index in frame.here:
                self._read(seqs, frame, index, starts[index], group, row)
                row += frame.routes.spans[index].count
        return self._attention.prepare(seqs, self._block_size)

    def _read(self, seqs: list[SeqRows], frame: Frame, index: int, start: int, group: int, row: int) -> None:
        """Add what this rank reads for one span and group, if anything."""
        span = frame.routes.spans[index]
        end = start + span.count
        num_blocks = -(-end // self._block_size)
        local = frame.sequences[index].table.local(group, num_blocks, span.present)
        if local is None:
            return
        num_keys = local.num_pages * self._block_size
        if local.holds_last:
            num_keys -= num_blocks * self._block_size - end
        seqs.append(
            SeqRows(row, span.count, start, local.pages, local.first_block, local.block_step, num_keys)
        )

    def _gathers(self, frame: Frame) -> Iterator[Gather]:
        """By head first, then shares, as `layer_collectives` lists them."""
        routes = frame.routes
        for index in routes.gathered:
            row, count = routes.starts[index], routes.spans[index].count
            yield self._gather(
                frame,
                index,
                full=False,
                queries=slice(row, row + count),
                share=range(count),
                entries=slice(row, row + count),
            )
        query = frame.num_full_paged
        for index in routes.gathered_full:
            row, count = routes.starts[index], routes.spans[index].count
            share = row_share(self._rank, count, self._topo.ranks)
            first = self._entry(frame, row, 0)
            yield self._gather(
                frame,
                index,
                full=True,
                queries=slice(query, query + len(share)),
                share=share,
                entries=slice(first, first + count * self._topo.groups),
            )
            query += len(share)

    def _gather(
        self, frame: Frame, index: int, *, full: bool, queries: slice, share: range, entries: slice
    ) -> Gather:
        span, table = frame.routes.spans[index], frame.sequences[index].table
        groups = range(self._topo.groups if full else 1)
        parts = []
        for first, stop, tokens in gather_parts(span, self._topo, self._block_size, self._gather_tokens):
            total = sum(tokens)
            parts.append(
                HistoryPart(
                    pages=tuple(
                        table.between(group, first, stop, span.present) for group in range(self._topo.groups)
                    ),
                    tokens=tokens,
                    seqs=self._whole_pages(groups, len(share), total, start=total, num_keys=total),
                )
            )
        own = self._whole_pages(groups, len(share), span.count, start=share.start, num_keys=share.stop)
        return Gather(full, queries, tuple(parts), entries, own)

    def _whole_pages(
        self, groups: Iterable[int], count: int, page_tokens: int, *, start: int, num_keys: int
    ) -> object:
        """Prepared: `count` queries over the first keys of page g, for each group g."""
        if not count:
            return None
        return self._attention.prepare(
            [SeqRows(g * count, count, start, torch.tensor([g]), 0, 1, num_keys) for g in groups],
            page_tokens,
        )


def _select(rope: RopeRows, rows: Index, num_rows: int) -> RopeRows:
    return rope if isinstance(rows, slice) and rows == slice(0, num_rows) else rope.select(rows)


def _index(rows: list[int]) -> Index:
    """A slice if the rows are contiguous, else their numbers."""
    if not rows:
        return slice(0, 0)
    if rows[-1] - rows[0] + 1 == len(rows) and rows == list(range(rows[0], rows[-1] + 1)):
        return slice(rows[0], rows[-1] + 1)
    return torch.tensor(rows, dtype=torch.int64)
