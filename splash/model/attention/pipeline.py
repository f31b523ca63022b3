"""The one attention pipeline: project, exchange A, append, attend, exchange B, finish (DESIGN §2).

Rows of all layouts go through it together; what happens to a row is its `layout.exchange.Dataflow`, and
`AttentionRows` has the index tensors that follow. Every collective is entered by all ranks or by none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from splash.hal.protocol import Attention, Communicator, PagedKV
from splash.layout.holders import Topology
from splash.model.attention.history import gather_history
from splash.model.attention.projection import Projected, Projection
from splash.model.attention.rows import AttentionRows, Gather, Index, take
from splash.model.attention.wire import pack_outputs, pack_queries, unpack_outputs, unpack_queries

Entries = tuple[torch.Tensor, ...]
"""New KV that this rank knows: the fields of a page, each [entries, width]."""
Attended = tuple[torch.Tensor, torch.Tensor]
"""Outputs [n, heads, d_o] and LSE [n, heads] fp32."""


@dataclass(frozen=True, slots=True)
class LayerPages:
    """One layer of this rank's pages: `fields` [pages, block_size, width] each, strided views of the pool."""

    fields: tuple[torch.Tensor, ...]
    paged: PagedKV


class AttentionPipeline:
    """The attention of one layer on one rank."""

    def __init__(
        self,
        *,
        projection: Projection,
        pages: LayerPages,
        comm: Communicator,
        attention: Attention,
        topo: Topology,
        scale: float,
    ) -> None:
        self.projection = projection
        self.pages = pages
        self.comm = comm
        self.attention = attention
        self.topo = topo
        self.scale = scale
        self.num_heads = projection.num_heads
        self.own_heads = projection.num_heads // topo.ranks

    def __call__(self, h: torch.Tensor, rows: AttentionRows) -> torch.Tensor:
        """`h` [N, hidden], normed and replicated -> this rank's share [N, hidden], which an all-reduce closes."""
        new = self.projection.project(h, rows)
        queries, entries = self._exchange_queries(new, rows)
        self._append(entries, rows)
        by_head = self._attend_own(new.own, rows)
        gathered, shares = self._attend_gathered(new, entries, rows)
        returned, staying = self._attend_here(queries, rows)
        return self._finish(h, [*by_head, *gathered, *returned], [*staying, *shares], rows)

    def _exchange_queries(self, new: Projected, rows: AttentionRows) -> tuple[torch.Tensor, Entries]:
        """Exchange A -> queries that attend here [num_here, all heads, d_q], and all new KV known here."""
        plan, full = rows.query_exchange, new.full[: rows.num_full_paged]
        if plan is None:
            return full, new.entries
        received = self.comm.all_to_all_v(pack_queries(new, plan), plan.send_counts, plan.recv_counts)
        arrived, ridden = unpack_queries(
            received, plan, heads=self.own_heads, width=self.projection.query_dim
        )
        return _joined([arrived, full]), self._with_ridden(new.entries, ridden)

    def _with_ridden(self, entries: Entries, ridden: torch.Tensor | None) -> Entries:
        if ridden is None:
            return entries
        fields = ridden.split([field.shape[-1] for field in entries], dim=-1)
        return tuple(torch.cat(pair) for pair in zip(entries, fields, strict=True))

    def _append(self, entries: Entries, rows: AttentionRows) -> None:
        """Write the new KV that this rank holds, now or next, into its pages."""
        where = rows.appends
        if where.pages.shape[0]:
            for field, values in zip(self.pages.fields, entries, strict=True):
                field.index_put_((where.pages, where.offsets), take(values, where.entries))

    def _attend_own(self, queries: torch.Tensor, rows: AttentionRows) -> list[torch.Tensor]:
        """Own heads over this rank's pages."""
        if not rows.num_own:
            return []
        return [self._attend(queries[: rows.num_own], self.pages.paged, rows.own_seqs)[0]]

    def _attend_here(
        self, queries: torch.Tensor, rows: AttentionRows
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """All heads over this rank's pages -> own heads of what came back from all ranks, all heads of what stays."""
        if not rows.num_here and rows.output_exchange is None:
            return [], []
        here, lse = self._nothing(queries, self.num_heads)
        if rows.num_here:
            here, lse = self._attend_groups(queries, self.pages.paged, rows.here_seqs)
        return self._exchange_outputs(here, lse, rows), [here[rows.num_returning :]]

    def _attend_gathered(
        self, new: Projected, entries: Entries, rows: AttentionRows
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Spans whose history comes here: own heads of all their rows, or all heads of this rank's share of them."""
        by_head: list[torch.Tensor] = []
        shares: list[torch.Tensor] = []
        for gather in rows.gathers:
            if gather.full:
                shares.append(self._attend_span(new.full[gather.queries], entries, gather))
            else:
                by_head.append(self._attend_span(new.own[gather.queries], entries, gather))
        return by_head, shares

    def _attend_span(self, queries: torch.Tensor, entries: Entries, gather: Gather) -> torch.Tensor:
        """Piece by piece over the history, then over the span's own tokens, merged by LSE."""
        attend = self._attend_groups if gather.full else self._attend
        results: list[Attended] = []
        for part in gather.parts:
            history = gather_history(self.pages.fields, part, self.comm, self.topo, full=gather.full)
            if queries.shape[0]:
                results.append(attend(queries, self._paged(history), part.seqs))
        if not queries.shape[0]:
            return self._nothing(queries, queries.shape[1])[0]
        results.append(attend(queries, self._paged_entries(entries, gather), gather.own_seqs))
        if len(results) == 1:
            return results[0][0]
        outs, lses = zip(*results, strict=True)
        return self.attention.merge(torch.stack(outs), torch.stack(lses))[0]

    def _paged(self, history: torch.Tensor) -> PagedKV:
        """[groups, tokens, kv width] as one page for each group."""
        return self.projection.paged(history.split([field.shape[-1] for field in self.pages.fields], dim=-1))

    def _paged_entries(self, entries: Entries, gather: Gather) -> PagedKV:
        """The span's new KV as one page for each group: entries are row by row, its groups side by side."""
        groups = self.projection.groups if gather.full else 1
        return self.projection.paged(
            [field[gather.entries].unflatten(0, (-1, groups)).transpose(0, 1) for field in entries]
        )

    def _attend_groups(self, queries: torch.Tensor, kv: PagedKV, seqs: Any) -> Attended:
        """All heads: a sequence of the kernel is (request, KV group), so rows are laid out group after group."""
        groups = self.projection.groups
        if groups == 1:
            return self._attend(queries, kv, seqs)
        n = queries.shape[0]
        grouped = queries.unflatten(1, (groups, -1)).transpose(0, 1).flatten(0, 1)
        out, lse = self._attend(grouped, kv, seqs)
        return (
            out.unflatten(0, (groups, n)).transpose(0, 1).flatten(1, 2),
            lse.unflatten(0, (groups, n)).transpose(0, 1).flatten(1, 2),
        )

    def _attend(self, queries: torch.Tensor, kv: PagedKV, seqs: Any) -> Attended:
        return self.attention.attend(queries, kv, seqs, self.scale)

    def _nothing(self, like: torch.Tensor, heads: int) -> Attended:
        out = like.new_empty(0, heads, self.projection.output_dim)
        return out, like.new_empty(0, heads, dtype=torch.float32)

    def _exchange_outputs(
        self, here: torch.Tensor, lse: torch.Tensor, rows: AttentionRows
    ) -> list[torch.Tensor]:
        """Exchange B -> outputs of own heads: the rows of each owner, then partial ones, merged."""
        plan = rows.output_exchange
        if plan is None:
            return []
        send = pack_outputs(here, lse, plan, ranks=self.topo.ranks)
        received = self.comm.all_to_all_v(send, plan.send_counts, plan.recv_counts)
        whole, outs, lses = unpack_outputs(
            received, plan, heads=self.own_heads, width=self.projection.output_dim
        )
        return [*whole, self.attention.merge(outs, lses)[0]] if plan.partial else whole

    def _finish(
        self,
        h: torch.Tensor,
        by_head: Sequence[torch.Tensor],
        full: Sequence[torch.Tensor],
        rows: AttentionRows,
    ) -> torch.Tensor:
        """Each (row, head) by the one rank that `writers` names; what other ranks write stays zero here."""
        parts: list[tuple[Index, torch.Tensor]] = []
        if rows.finish_by_head is not None:
            parts.append((rows.finish_by_head, self.projection.finish_own(_joined(by_head))))
        if rows.finish_full is not None:
            parts.append((rows.finish_full, self.projection.finish_full(_joined(full))))
        share = _place(parts, like=h)
        if self.projection.out_bias is not None and self.comm.rank == 0:
            share += self.projection.out_bias
        return share


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Concatenation of those that have rows."""
    filled = [part for part in parts if part.shape[0]]
    return filled[0] if len(filled) == 1 else torch.cat(filled or list(parts[:1]))


def _place(parts: Sequence[tuple[Index, torch.Tensor]], like: torch.Tensor) -> torch.Tensor:
    """[N, hidden] with `values` at their rows and zero elsewhere."""
    if len(parts) == 1 and isinstance(parts[0][0], slice) and parts[0][1].shape[0] == like.shape[0]:
        return parts[0][1]
    placed = torch.zeros_like(like)
    for rows, values in parts:
        if isinstance(rows, slice):
            placed[rows] = values
        else:
            placed.index_copy_(0, rows, values)
    return placed
