"""What a step comes to, in counts: rows by the weights that compute them, what ranks attend over, what travels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np

from splash.hw.attention import AttentionCost, PlacedReads, PromptReads, Whole, chooses
from splash.hw.figures import Condition, Figure, each_rank
from splash.hw.profile import Prefill
from splash.hw.traffic import Traffic, TrafficCost
from splash.layout.layouts import Placement, Projection
from splash.layout.rows import Method
from splash.layout.work import DecodeRows, PromptRows, Work, may_scatter

FULL, OWNER, STRIPED = Projection.FULL, Placement.OWNER, Placement.STRIPED
"""Asked for each group of rows, where looking them up in their enumerations shows (55 ns in Python 3.11)."""
KINDS = tuple((whole, absorbed) for whole in (False, True) for absorbed in (False, True))
"""Of chunks that are attended together: with all heads or not, absorbed or not yet said."""


@dataclass(slots=True)
class Rows:
    """By the attention weights that change place: q and o compute all of them, uk and uv those that are absorbed."""

    shard: Figure = 0
    """By each rank's head shard."""
    shard_absorbed: Figure = 0
    whole: Figure = 0
    """By all heads' weights, of each rank."""
    whole_absorbed: Figure = 0
    halved: Figure = 0
    """By all heads' q and uk on every rank, and each rank's shard of uv and o."""


class Reads(Protocol):
    """What each rank attends over of some rows of a step."""

    def priced(self, attention: AttentionCost) -> Figure:
        """Seconds of each rank."""
        ...


@dataclass(frozen=True, slots=True)
class DecodeReads:
    """Of the decodes of one placement."""

    whole: Whole
    """Whether with all heads."""
    rows: Figure
    context: Figure
    selected: Figure

    def priced(self, attention: AttentionCost) -> Figure:
        return attention.decode_s(self.rows, self.context, self.selected, whole=self.whole)


@dataclass(frozen=True, slots=True)
class ChunkReads:
    """Of the chunks of one kind."""

    whole: Whole
    """Whether with all heads."""
    absorbed: Condition
    """Whether only so; see `AttentionCost.prompt_s`."""
    reads: PlacedReads | PromptReads

    def priced(self, attention: AttentionCost) -> Figure:
        return self.reads.priced(partial(attention.prompt_s, whole=self.whole, absorbed=self.absorbed))


@dataclass(frozen=True, slots=True)
class ScoredReads:
    """Of the chunks whose rows the indexers score."""

    reads: PlacedReads | PromptReads

    def priced(self, attention: AttentionCost) -> Figure:
        return self.reads.priced(attention.scoring_s)


@dataclass(slots=True)
class Tally:
    """Of one step, or of many."""

    decodes: Figure
    """Rows of them."""
    chunked: Figure
    """Rows of prompts."""
    sampled: Figure
    scatters: Condition
    """Whether rows may be divided over the ranks between layers."""
    rows: Rows = field(default_factory=Rows)
    traffic: Traffic = field(default_factory=Traffic)
    decode_reads: list[Reads] = field(default_factory=list)
    chunk_reads: list[Reads] = field(default_factory=list)


class _Owners:
    """Rows by owner."""

    def __init__(self, ranks: int) -> None:
        self.whole = [0] * ranks
        """Computed by its whole weights,"""
        self.absorbed = [0] * ranks
        """and absorbed."""
        self.received = [0] * ranks
        """Whose queries come to it."""


@dataclass(frozen=True, slots=True)
class Counting:
    """How the steps of a deployment are counted."""

    ranks: int
    keeps: float
    """Tokens that a row attends to at most."""
    prefill: Prefill
    """The kernel that computes prompts."""
    unabsorbed: bool
    """Prompts may attend with keys and values projected up from the latents."""
    traffic: TrafficCost

    def one(self, work: Work) -> Tally:
        """Of one step; or of several alike, where its contexts are arrays over them."""
        tally = Tally(
            decodes=sum(group.rows for group in work.decodes),
            chunked=sum(chunk.count for chunk in work.prompts),
            sampled=work.sampled,
            scatters=may_scatter(work, self.ranks),
        )
        owners = _Owners(self.ranks)
        self._add_decodes(work.decodes, tally, owners)
        if work.prompts:
            self._add_chunks(work.prompts, tally, owners)
        if any(owners.whole):
            tally.rows.whole = tally.rows.whole + np.array(owners.whole)
            tally.rows.whole_absorbed = tally.rows.whole_absorbed + np.array(owners.absorbed)
        tally.traffic.into_owner, tally.traffic.to_owners = max(owners.received), sum(owners.received)
        return tally

    def _add_decodes(self, decodes: Sequence[DecodeRows], tally: Tally, owners: _Owners) -> None:
        by_head: list[DecodeRows] = []
        owned: list[DecodeRows] = []
        striped: list[DecodeRows] = []
        shard = halved = to_stripes = 0
        for group in decodes:
            layout, home, count = group.at.layout, group.at.home, group.rows
            full = layout.projection is FULL
            if not full:
                shard += count
            if layout.placement is OWNER:
                owned.append(group)
                if full:
                    owners.whole[home] += count
                    owners.absorbed[home] += count
                else:
                    owners.received[home] += count
            elif layout.placement is STRIPED:
                striped.append(group)
                if full:
                    halved += count
                else:
                    to_stripes += count
            else:
                by_head.append(group)
        tally.rows.halved, tally.traffic.to_stripes = halved, to_stripes
        tally.rows.shard = tally.rows.shard_absorbed = shard
        if by_head:
            tally.decode_reads.append(self._read_alike(by_head, whole=False, shares=1))
        if owned:
            tally.decode_reads.append(self._read_by_owners(owned))
        if striped:
            tally.decode_reads.append(self._read_alike(striped, whole=True, shares=self.ranks))
            self._add_striped(striped, tally.traffic)

    def _add_striped(self, decodes: Sequence[DecodeRows], traffic: Traffic) -> None:
        for group in decodes:
            traffic.striped += group.rows
            proposed = self.traffic.proposed(group.rows, group.context / group.rows, self.ranks)
            chosen = chooses(group.selected, group.context) * proposed
            traffic.candidates = traffic.candidates + each_rank(chosen)

    def _read_alike(self, decodes: Sequence[DecodeRows], *, whole: bool, shares: int) -> DecodeReads:
        """Of decodes of which every rank has an equal share."""
        count, seen, kept = 0, 0.0, 0.0
        for group in decodes:
            count, seen, kept = count + group.rows, seen + group.context, kept + group.selected
        return DecodeReads(whole, count, each_rank(seen / shares), each_rank(kept / shares))

    def _read_by_owners(self, decodes: Sequence[DecodeRows]) -> DecodeReads:
        if isinstance(decodes[0].context, np.ndarray):
            rows, context, selected = np.zeros((3, *decodes[0].context.shape, self.ranks))
            for group in decodes:
                rows[..., group.at.home] += group.rows
                context[..., group.at.home] += group.context
                selected[..., group.at.home] += group.selected
            return DecodeReads(True, rows, context, selected)
        by_rank = [[0.0] * self.ranks for _ in range(3)]
        for group in decodes:
            home = group.at.home
            by_rank[0][home] += group.rows
            by_rank[1][home] += group.context
            by_rank[2][home] += group.selected
        return DecodeReads(True, *np.array(by_rank))

    def _add_chunks(self, prompts: Sequence[PromptRows], tally: Tally, owners: _Owners) -> None:
        reads: dict[tuple[bool, bool], PlacedReads] = {}
        scored = PlacedReads(self.prefill, self.ranks)
        for chunk in prompts:
            placement, exchanged = chunk.at.layout.placement, chunk.method is Method.EXCHANGE
            all_heads = exchanged or chunk.at.layout.projection is FULL
            absorbed = exchanged or not self.unabsorbed or chunk.start + chunk.count > self.keeps
            at_owner = placement is OWNER and all_heads
            divided = placement is STRIPED and all_heads
            kind = at_owner or divided, absorbed
            if kind not in reads:
                reads[kind] = PlacedReads(self.prefill, self.ranks)
            projected = -(-chunk.count // self.ranks) if divided else chunk.count
            reads[kind].on(chunk.at.home if at_owner else None).add(
                chunk.start,
                chunk.count,
                self.keeps,
                share=1 / self.ranks if divided else 1.0,
                projected=projected,
            )
            self._add_rows(chunk, tally, owners, projected, absorbed=absorbed)
            self._score(chunk, scored, tally.traffic)
        tally.chunk_reads += [ChunkReads(*kind, reads[kind]) for kind in KINDS if kind in reads]
        tally.chunk_reads.append(ScoredReads(scored))

    def _add_rows(
        self, chunk: PromptRows, tally: Tally, owners: _Owners, projected: int, *, absorbed: bool
    ) -> None:
        """The rows of a chunk, of which a rank projects so many, and what travels for them."""
        count, rows, traffic = chunk.count, tally.rows, tally.traffic
        full = chunk.at.layout.projection is FULL
        owned = chunk.at.layout.placement is OWNER
        exchanged = chunk.method is Method.EXCHANGE
        if full and owned:
            owners.whole[chunk.at.home] += count
            owners.absorbed[chunk.at.home] += count * absorbed
        elif not full:
            rows.shard += count
            rows.shard_absorbed += count * absorbed
        elif exchanged:
            rows.halved += count
        else:
            rows.whole += projected
            rows.whole_absorbed += projected * absorbed
        if chunk.method is Method.GATHER:
            traffic.gathering_s += self.traffic.gathering_s(chunk.start, whole=full)
        elif exchanged and owned:
            owners.received[chunk.at.home] += count
        elif exchanged:
            traffic.to_stripes += 0 if full else count
            traffic.striped += count

    def _score(self, chunk: PromptRows, scored: PlacedReads, traffic: Traffic) -> None:
        """Where the indexer's keys are, there the rows are scored: on every rank, by the owner, or each stripe its own
        tokens. Who attends elsewhere is told the best, not the keys (ADR 0006)."""
        placement, end = chunk.at.layout.placement, chunk.start + chunk.count
        if end <= self.keeps:
            return
        at_owner, striped = placement is OWNER, placement is STRIPED
        share = 1 / self.ranks if striped else 1.0
        scored.on(chunk.at.home if at_owner else None).add(chunk.start, chunk.count, self.keeps, share=share)
        if striped or (at_owner and chunk.method is Method.GATHER):
            holders = self.ranks if striped else 1
            traffic.candidates = traffic.candidates + self.traffic.proposed(chunk.count, end, holders)
