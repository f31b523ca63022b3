"""What the rows of a step read on one rank: its pages, or histories that are gathered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set

import numpy as np

from splash.exec.entries import entry_of
from splash.exec.frame import Frame, RankShape
from splash.hal.protocol import Attention, SeqRows
from splash.layout.exchange import gather_parts
from splash.layout.writers import row_share
from splash.model.attention.rows import Gather, HistoryPart


class Reading:
    """Prepares the attention of a step. `gather_tokens` bounds the workspace of a gathered history."""

    def __init__(self, shape: RankShape, attention: Attention, gather_tokens: int) -> None:
        self._shape = shape
        self._attention = attention
        self._gather_tokens = gather_tokens
        self._own_group = shape.topo.group_of(shape.rank)

    def own_seqs(self, frame: Frame, starts: list[int], selecting: Set[int]) -> object:
        """Own heads over the own group's pages: the first rows, `selecting` spans apart. None if all of them are."""
        routes, group = frame.routes, self._own_group
        dense = [index for index in routes.own if index not in selecting] if selecting else routes.own
        if not dense:
            return None
        seqs = [self.seq(frame, index, starts[index], group, routes.starts[index]) for index in dense]
        return self._prepare(seqs)

    def here_seqs(self, frame: Frame, starts: list[int], selecting: Set[int]) -> object:
        """All heads over all groups' pages, group after group of the rows that attend here; else as `own_seqs`."""
        if not frame.here or (selecting and selecting >= set(frame.here)):
            return None
        seqs: list[SeqRows | None] = []
        for group in range(self._shape.topo.groups):
            row = group * frame.num_here
            for index in frame.here:
                if index not in selecting:
                    seqs.append(self.seq(frame, index, starts[index], group, row))
                row += frame.routes.spans[index].count
        return self._prepare(seqs)

    def seq(self, frame: Frame, index: int, start: int, group: int, row: int) -> SeqRows | None:
        """What this rank reads for one span and group; None if there is nothing."""
        size, span = self._shape.block_size, frame.routes.spans[index]
        end = start + span.count
        num_blocks = -(-end // size)
        local = frame.sequences[index].table.local(group, num_blocks, span.present)
        if local is None:
            return None
        num_keys = local.num_pages * size
        if local.holds_last:
            num_keys -= num_blocks * size - end
        return SeqRows(row, span.count, start, local.pages, local.first_block, local.block_step, num_keys)

    def _prepare(self, seqs: Iterable[SeqRows | None]) -> object:
        return self._attention.prepare([seq for seq in seqs if seq is not None], self._shape.block_size)

    def gathers(self, frame: Frame, selecting: Set[int]) -> Iterator[Gather]:
        """By head first, then shares, as `layer_collectives` lists them."""
        routes, shape = frame.routes, self._shape
        for index in routes.gathered:
            rows = slice(routes.starts[index], routes.starts[index] + routes.spans[index].count)
            share = range(routes.spans[index].count)
            yield self._gather(
                frame, index, share, full=False, queries=rows, entries=rows, dense=index not in selecting
            )
        query = frame.num_full_paged
        for index in routes.gathered_full:
            count = routes.spans[index].count
            share = row_share(shape.rank, count, shape.topo.ranks)
            first = entry_of(frame, routes.starts[index], 0, shape)
            entries = slice(first, first + count * shape.topo.groups)
            queries = slice(query, query + len(share))
            yield self._gather(
                frame, index, share, full=True, queries=queries, entries=entries, dense=index not in selecting
            )
            query += len(share)

    def _gather(
        self,
        frame: Frame,
        index: int,
        share: range,
        *,
        full: bool,
        queries: slice,
        entries: slice,
        dense: bool,
    ) -> Gather:
        """`share`: which of the span's rows this rank computes; `dense`: they do not select."""
        topo, size = self._shape.topo, self._shape.block_size
        span, table = frame.routes.spans[index], frame.sequences[index].table
        groups = range(topo.groups if full else 1)
        count = len(share) if dense else 0
        parts = []
        for first, stop, tokens in gather_parts(span, topo, size, self._gather_tokens):
            pages = [table.between(group, first, stop, span.present) for group in range(topo.groups)]
            total = sum(tokens)
            seqs = self._whole_pages(groups, count, total, start=total, num_keys=total)
            parts.append(HistoryPart(tuple(pages), tokens, seqs))
        own = self._whole_pages(groups, count, span.count, start=share.start, num_keys=share.stop)
        return Gather(full, queries, tuple(parts), entries, own)

    def _whole_pages(
        self, groups: Iterable[int], count: int, page_tokens: int, *, start: int, num_keys: int
    ) -> object:
        """`count` queries over the first keys of page g, for each group g; positions count from the page's start."""
        if not count:
            return None
        seqs = [SeqRows(g * count, count, start, np.array([g]), 0, 1, num_keys) for g in groups]
        return self._attention.prepare(seqs, page_tokens)
