"""From a plan to the index tensors of a step: built once, used by every layer.

What depends only on which requests run and how (`Frame`) is kept while steps are alike; positions, pages and
tokens are looked up in every step.
"""

from __future__ import annotations

from collections.abc import Set
from typing import NamedTuple

import numpy as np
import torch

from splash.exec.entries import appends_of, arrivals_of, query_exchange, rides_of
from splash.exec.frame import Frame, Frames, RankShape, routes_at
from splash.exec.mirror import Mirror, Sequence
from splash.exec.pooling import pool_rows
from splash.exec.reading import Reading
from splash.exec.selecting import selecting_rows
from splash.hal.protocol import Attention
from splash.layout.exchange import Collective, Ride, Routes, layer_collectives
from splash.layout.selection import Selecting, counts_candidates, selecting
from splash.model.attention.index import Index
from splash.model.attention.rows import AttentionRows
from splash.model.attention.selection import SelectingRows
from splash.model.rope import RopeRows, RopeTable
from splash.sched.step import StepPlan

NO_SPANS: Set[int] = frozenset()


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
    selecting: Selecting | None
    """Spans that attend over chosen tokens; None if there are none."""


class InputBuilder:
    """Builds one rank's inputs. `gather_tokens` bounds the workspace of gathered histories."""

    def __init__(
        self,
        *,
        mirror: Mirror,
        shape: RankShape,
        rope: RopeTable,
        attention: Attention,
        gather_tokens: int,
        index_rope: RopeTable | None = None,
    ) -> None:
        """`index_rope`: the rotations of an indexer's queries and keys, where the model has one."""
        self._mirror = mirror
        self._shape = shape
        self._rope = rope
        self._index_rope = index_rope
        self._attention = attention
        self._reading = Reading(shape, attention, gather_tokens)
        self._gather_tokens = gather_tokens
        self._no_rope = rope.at(torch.empty(0, dtype=torch.int64))
        self._frames = Frames(shape)
        self._kept: tuple[tuple[object, ...], Frame] | None = None

    def build(self, plan: StepPlan) -> StepInputs:
        frame = self._frame(plan)
        starts, positions, tokens = _places(frame, only_decodes=not plan.chunks)
        ridden = rides_of(frame, starts, self._shape)
        chosen = self._selecting(frame, starts)
        rows = self._rows(frame, starts, ridden, chosen, positions)
        return StepInputs(tokens, rows, frame.sampled, frame.sample_rows, frame.routes, ridden, chosen)

    def collectives(self, inputs: StepInputs, *, indexed: bool) -> list[Collective]:
        """What every rank enters in each layer of this step; `indexed`: in those with an indexer of their own."""
        shape, candidates = self._shape, None
        if indexed and inputs.selecting is not None and inputs.selecting.shared:
            candidates = counts_candidates(inputs.routes, inputs.selecting)
        return layer_collectives(
            inputs.routes,
            inputs.ridden,
            shape.topo,
            shape.block_size,
            self._gather_tokens,
            shape.widths,
            candidates,
        )

    def _selecting(self, frame: Frame, starts: list[int]) -> Selecting | None:
        shape = self._shape
        if shape.top_k is None:
            return None
        return selecting(routes_at(frame, starts), shape.topo, shape.block_size, shape.top_k, shape.pool)

    def _frame(self, plan: StepPlan) -> Frame:
        if plan.chunks:  # depends on positions
            return self._frames.make(plan, self._mirror)
        key = (self._mirror.version, plan.decodes)
        if self._kept is None or self._kept[0] != key:
            self._kept = key, self._frames.make(plan, self._mirror)
        return self._kept[1]

    def _rows(
        self,
        frame: Frame,
        starts: list[int],
        ridden: list[Ride],
        chosen: Selecting | None,
        positions: torch.Tensor,
    ) -> AttentionRows:
        shape, routes = self._shape, frame.routes
        rope = self._rope.at(positions)
        rope_index = None if self._index_rope is None else self._index_rope.at(positions)
        apart = NO_SPANS if chosen is None else chosen.spans
        return AttentionRows(
            num_rows=routes.num_rows,
            num_sharded=routes.num_sharded,
            num_own=frame.num_own,
            full_queries=frame.full_queries,
            num_full_paged=frame.num_full_paged,
            full_kv=frame.full_kv,
            rope=rope,
            rope_sharded=self._select(rope, slice(0, routes.num_sharded), routes.num_rows),
            rope_full_queries=self._select(rope, frame.full_queries, routes.num_rows),
            rope_full_kv=self._select(rope, frame.full_kv, routes.num_rows),
            appends=appends_of(frame, starts, arrivals_of(frame, ridden, shape), shape),
            query_exchange=query_exchange(frame, ridden, shape),
            own_seqs=self._reading.own_seqs(frame, starts, apart),
            num_here=frame.num_here,
            here_seqs=self._reading.here_seqs(frame, starts, apart),
            gathers=tuple(self._reading.gathers(frame, apart)),
            output_exchange=frame.output_exchange,
            num_returning=frame.num_returning,
            finish_by_head=frame.finish_by_head,
            finish_full=frame.finish_full,
            recurrent=frame.recurrent,
            rope_index=rope_index,
            pools=pool_rows(frame, starts, shape) if shape.pool > 1 else None,
            selecting=None if chosen is None else self._selecting_rows(frame, starts, chosen, rope_index),
        )

    def _selecting_rows(
        self, frame: Frame, starts: list[int], chosen: Selecting, rope: RopeRows | None
    ) -> SelectingRows:
        assert rope is not None
        return selecting_rows(
            frame,
            routes_at(frame, starts),
            chosen,
            rope,
            shape=self._shape,
            reading=self._reading,
            attention=self._attention,
            gather_tokens=self._gather_tokens,
        )

    def _select(self, rope: RopeRows, rows: Index, num_rows: int) -> RopeRows:
        """`rope.select`, without its cost for none and for all rows."""
        if isinstance(rows, slice) and rows.start == 0:
            if rows.stop == 0:
                return self._no_rope
            if rows.stop == num_rows:
                return rope
        return rope.select(rows)


def _places(frame: Frame, *, only_decodes: bool) -> tuple[list[int], torch.Tensor, torch.Tensor]:
    """The position of each span's first row; positions and tokens of all rows, int64 [N] each.

    A decode row is the last known token, wherever the kept frame was when it was made.
    """
    sequences, spans = frame.sequences, frame.routes.spans
    if only_decodes:
        starts = [s.num_tokens - 1 for s in sequences]
        positions = np.array(starts, dtype=np.int64)
        known = np.array([s.last_token for s in sequences], dtype=np.int64)
    else:
        starts = [span.start for span in spans]
        positions = np.concatenate([np.arange(span.start, span.end) for span in spans])
        known = np.concatenate([s.tokens[x.start : x.end] for s, x in zip(sequences, spans, strict=True)])
    return starts, torch.from_numpy(positions), torch.from_numpy(known)
