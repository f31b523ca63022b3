"""The one attention pipeline: project, exchange A, append, select, attend, exchange B, finish (DESIGN §2).

Rows of all layouts go through it together; what happens to a row is its `layout.exchange.Dataflow`, and
`AttentionRows` has the index tensors that follow. Every collective is entered by all ranks or by none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from splash.hal.fp8 import packed
from splash.hal.protocol import Attention, Communicator, PagedKV
from splash.layout.holders import Topology
from splash.model.attention.history import gather_history
from splash.model.attention.index import Index, take
from splash.model.attention.indexer import Indexer
from splash.model.attention.projection import Projected, Projection
from splash.model.attention.rows import AttentionRows, Gather
from splash.model.attention.selection import Selected, Selection
from splash.model.attention.wire import pack_outputs, pack_queries, unpack_outputs, unpack_queries
from splash.spec.packing import Packing

Entries = tuple[torch.Tensor, ...]
"""New KV that this rank knows: the fields of a page, each [entries, width]."""
Attended = tuple[torch.Tensor, torch.Tensor]
"""Outputs [n, heads, d_o] and LSE [n, heads] fp32."""
Slots = tuple[torch.Tensor, ...]
ALL = slice(None)


@dataclass(frozen=True, slots=True)
class LayerPages:
    """One layer of this rank's pages: `fields` [pages, block_size, width] each, strided views of the pool."""

    fields: tuple[torch.Tensor, ...]
    """What attention reads, then the index keys of a layer with an indexer."""
    paged: PagedKV
    packings: tuple[Packing | None, ...]
    """One a field: how its entries are packed, None where they are numbers."""

    def stored(self, entries: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """New entries as the first fields hold them, one tensor a field."""
        return [self.stored_in(number, values) for number, values in enumerate(entries)]

    def stored_in(self, number: int, values: torch.Tensor) -> torch.Tensor:
        """New entries as field `number` holds them."""
        packing = self.packings[number]
        return values.to(self.fields[number].dtype) if packing is None else packed(values, packing)


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
        indexer: Indexer | None = None,
    ) -> None:
        self.projection = projection
        self.pages = pages
        self.comm = comm
        self.attention = attention
        self.topo = topo
        self.scale = scale
        self.indexer = indexer
        self.kv_fields = pages.fields if indexer is None else pages.fields[:-1]
        self.num_heads = projection.num_heads
        self.own_heads = projection.num_heads // topo.ranks

    def __call__(
        self, h: torch.Tensor, rows: AttentionRows, selection: Selection | None
    ) -> tuple[torch.Tensor, Selection | None]:
        """`h` [N, hidden], normed and replicated -> this rank's share [N, hidden], which an all-reduce closes.

        `selection` is that of the layer before, and what this layer attended over is returned.
        """
        new = self.projection.project(h, rows)
        queries, entries = self._exchange_queries(new, rows)
        self._append(self._with_index_keys(h, entries, rows), rows)
        selection = self._select(h, new, rows, selection)
        by_head = self._attend_own(new.own, rows, selection)
        gathered, shares = self._attend_gathered(new, entries, rows, selection)
        returned, staying = self._attend_here(queries, rows, selection)
        share = self._finish(h, [*by_head, *gathered, *returned], [*staying, *shares], rows)
        return share, selection

    def _with_index_keys(self, h: torch.Tensor, entries: Entries, rows: AttentionRows) -> Entries:
        """With a key for each token; keys of pools, which are fewer, are written at once."""
        if self.indexer is None:
            return entries
        assert rows.rope_index is not None
        keys = self.indexer.new_keys(h, rows.rope_index)
        if rows.pools is None:
            return *entries, keys
        where = rows.pools
        pooled = self.indexer.new_pools(keys, h, where)
        if where.pages.shape[0]:
            stored = self.pages.stored_in(-1, take(pooled, where.entries))
            self.pages.fields[-1].index_put_((where.pages, where.offsets), stored)
        return entries

    def _select(
        self, h: torch.Tensor, new: Projected, rows: AttentionRows, selection: Selection | None
    ) -> Selection | None:
        """This layer's own choice if it has an indexer, else the one before; None: all attend to everything."""
        if self.indexer is None or rows.selecting is None:
            return selection
        assert new.q_latent is not None
        return self.indexer.select(h, new.q_latent, rows.selecting)

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
            values = self.pages.stored([take(field, where.entries) for field in entries])
            for field, stored in zip(self.pages.fields, values, strict=rows.pools is None):
                field.index_put_((where.pages, where.offsets), stored)

    def _attend_own(
        self, queries: torch.Tensor, rows: AttentionRows, selection: Selection | None
    ) -> list[torch.Tensor]:
        """Own heads over this rank's pages."""
        if not rows.num_own:
            return []
        selected = None if selection is None else selection.own
        return [self._attend(queries[: rows.num_own], self.pages.paged, rows.own_seqs, selected)[0]]

    def _attend_here(
        self, queries: torch.Tensor, rows: AttentionRows, selection: Selection | None
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """All heads over this rank's pages -> own heads of what came back from all ranks, all heads of what stays."""
        if not rows.num_here and rows.output_exchange is None:
            return [], []
        here, lse = self._nothing(queries, self.num_heads)
        if rows.num_here:
            selected = None if selection is None else selection.here
            here, lse = self._attend_groups(queries, self.pages.paged, rows.here_seqs, selected)
        return self._exchange_outputs(here, lse, rows), [here[rows.num_returning :]]

    def _attend_gathered(
        self, new: Projected, entries: Entries, rows: AttentionRows, selection: Selection | None
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Spans whose history comes here: own heads of all their rows, or all heads of this rank's share of them."""
        by_head: list[torch.Tensor] = []
        shares: list[torch.Tensor] = []
        for i, gather in enumerate(rows.gathers):
            slots = None if selection is None else selection.gathers[i]
            if gather.full:
                shares.append(self._attend_span(new.full[gather.queries], entries, gather, slots))
            else:
                by_head.append(self._attend_span(new.own[gather.queries], entries, gather, slots))
        return by_head, shares

    def _attend_span(
        self, queries: torch.Tensor, entries: Entries, gather: Gather, slots: Slots | None
    ) -> torch.Tensor:
        """Piece by piece over the history, then over the span's own tokens, merged by LSE.

        `slots` of the chosen tokens in each of these; None: every query attends to all that it sees.
        """
        attend = self._attend_groups if gather.full else self._attend
        chosen = [None] * (len(gather.parts) + 1) if slots is None else [Selected(ALL, s) for s in slots]
        results: list[Attended] = []
        for part, selected in zip(gather.parts, chosen, strict=False):
            history = gather_history(self.kv_fields, part, self.comm, self.topo, full=gather.full)
            if queries.shape[0]:
                results.append(attend(queries, self._paged(history), part.seqs, selected))
        if not queries.shape[0]:
            return self._nothing(queries, queries.shape[1])[0]
        own = self._paged_entries(entries, gather)
        results.append(attend(queries, own, gather.own_seqs, chosen[-1]))
        if len(results) == 1:
            return results[0][0]
        outs, lses = zip(*results, strict=True)
        return self.attention.merge(torch.stack(outs), torch.stack(lses))[0]

    def _paged(self, history: torch.Tensor) -> PagedKV:
        """[groups, tokens, kv width] as one page for each group."""
        return self.projection.paged(history.split([field.shape[-1] for field in self.kv_fields], dim=-1))

    def _paged_entries(self, entries: Entries, gather: Gather) -> PagedKV:
        """The span's new KV as one page for each group: entries are row by row, its groups side by side."""
        groups = self.projection.groups if gather.full else 1
        stored = self.pages.stored([field[gather.entries] for field in entries])
        return self.projection.paged([field.unflatten(0, (-1, groups)).transpose(0, 1) for field in stored])

    def _attend_groups(
        self, queries: torch.Tensor, kv: PagedKV, seqs: Any, selected: Selected | None
    ) -> Attended:
        """All heads: a sequence of the kernel is (request, KV group), so rows are laid out group after group."""
        groups = self.projection.groups
        if groups == 1:
            return self._attend(queries, kv, seqs, selected)
        n = queries.shape[0]
        grouped = queries.unflatten(1, (groups, -1)).transpose(0, 1).flatten(0, 1)
        out, lse = self._attend(grouped, kv, seqs, None)
        return (
            out.unflatten(0, (groups, n)).transpose(0, 1).flatten(1, 2),
            lse.unflatten(0, (groups, n)).transpose(0, 1).flatten(1, 2),
        )

    def _attend(self, queries: torch.Tensor, kv: PagedKV, seqs: Any, selected: Selected | None) -> Attended:
        """Over all tokens that `seqs` names, those of `selected` over chosen ones; `seqs` None: all are selected."""
        if selected is None:
            return self.attention.attend(queries, kv, seqs, self.scale)
        sparse = self.attention.attend_selected(
            take(queries, selected.queries), kv, selected.slots, self.scale
        )
        if seqs is None:
            return sparse
        dense = self.attention.attend(queries, kv, seqs, self.scale)
        for whole, part in zip(dense, sparse, strict=True):
            whole[selected.queries] = part
        return dense

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
