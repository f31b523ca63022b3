"""What a step comes to, in counts: rows by the weights that compute them, what ranks attend over, what travels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np

from splash.hw.attention import AttentionCost, PlacedReads, PromptReads, chooses
from splash.hw.figures import Condition, Figure, each_rank
from splash.hw.profile import Prefill
from splash.hw.traffic import Traffic, TrafficCost
from splash.layout.layouts import CP, DCP, DOP, DP, Placement
from splash.layout.rows import Method
from splash.layout.work import DecodeRows, PromptRows, Work, may_scatter

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

    whole: Condition
    """Whether with all heads."""
    rows: Figure
    context: Figure
    selected: Figure

    def priced(self, attention: AttentionCost) -> Figure:
        return attention.decode_s(self.rows, self.context, self.selected, whole=self.whole)


@dataclass(frozen=True, slots=True)
class ChunkReads:
    """Of the chunks of one kind."""

    whole: Condition
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
        rows, traffic = tally.rows, tally.traffic
        placed: dict[Placement, list[DecodeRows]] = {}
        for group in decodes:
            layout, home, count = group.at.layout, group.at.home, group.rows
            placed.setdefault(layout.placement, []).append(group)
            if layout is DP:
                owners.whole[home] += count
                owners.absorbed[home] += count
            elif layout is CP:
                rows.halved += count
            else:
                rows.shard += count
                rows.shard_absorbed += count
            if layout is DOP:
                owners.received[home] += count
            elif layout.placement is Placement.STRIPED:
                traffic.to_stripes += count if layout is DCP else 0
                traffic.striped += count
                proposed = self.traffic.proposed(count, group.context / count, self.ranks)
                chosen = chooses(group.selected, group.context) * proposed
                traffic.candidates = traffic.candidates + each_rank(chosen)
        tally.decode_reads += [self._read(placed[place], place) for place in Placement if place in placed]

    def _read(self, decodes: Sequence[DecodeRows], placement: Placement) -> DecodeReads:
        if placement is Placement.OWNER:
            rows: list[int] = [0] * self.ranks
            context: list[Figure] = [0.0] * self.ranks
            selected: list[Figure] = [0.0] * self.ranks
            for group in decodes:
                home = group.at.home
                rows[home] += group.rows
                context[home] = context[home] + group.context
                selected[home] = selected[home] + group.selected
            return DecodeReads(True, np.array(rows), _by_rank(context), _by_rank(selected))
        count, seen, kept = 0, 0.0, 0.0
        for group in decodes:
            count, seen, kept = count + group.rows, seen + group.context, kept + group.selected
        if placement is Placement.STRIPED:
            return DecodeReads(True, count, each_rank(seen / self.ranks), each_rank(kept / self.ranks))
        return DecodeReads(False, count, each_rank(seen), each_rank(kept))

    def _add_chunks(self, prompts: Sequence[PromptRows], tally: Tally, owners: _Owners) -> None:
        reads: dict[tuple[bool, bool], PlacedReads] = {}
        scored = PlacedReads(self.prefill, self.ranks)
        for chunk in prompts:
            layout, exchanged = chunk.at.layout, chunk.method is Method.EXCHANGE
            absorbed = exchanged or not self.unabsorbed or chunk.start + chunk.count > self.keeps
            at_owner = layout is DP or (layout is DOP and exchanged)
            divided = layout is CP or (layout is DCP and exchanged)
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
        layout, count, rows, traffic = chunk.at.layout, chunk.count, tally.rows, tally.traffic
        exchanged = chunk.method is Method.EXCHANGE
        if layout is DP:
            owners.whole[chunk.at.home] += count
            owners.absorbed[chunk.at.home] += count * absorbed
        elif layout is not CP:
            rows.shard += count
            rows.shard_absorbed += count * absorbed
        elif exchanged:
            rows.halved += count
        else:
            rows.whole += projected
            rows.whole_absorbed += projected * absorbed
        if chunk.method is Method.GATHER:
            traffic.gathering_s += self.traffic.gathering_s(chunk.start, whole=layout is CP)
        elif exchanged and layout is DOP:
            owners.received[chunk.at.home] += count
        elif exchanged:
            traffic.to_stripes += count if layout is DCP else 0
            traffic.striped += count

    def _score(self, chunk: PromptRows, scored: PlacedReads, traffic: Traffic) -> None:
        """Where the indexer's keys are, there the rows are scored: on every rank, by the owner, or each stripe its own
        tokens. Who attends elsewhere is told the best, not the keys (ADR 0006)."""
        placement, end = chunk.at.layout.placement, chunk.start + chunk.count
        if end <= self.keeps:
            return
        at_owner, striped = placement is Placement.OWNER, placement is Placement.STRIPED
        share = 1 / self.ranks if striped else 1.0
        scored.on(chunk.at.home if at_owner else None).add(chunk.start, chunk.count, self.keeps, share=share)
        if striped or (at_owner and chunk.method is Method.GATHER):
            holders = self.ranks if striped else 1
            traffic.candidates = traffic.candidates + self.traffic.proposed(chunk.count, end, holders)


def _by_rank(values: list[Figure]) -> Figure:
    """[..., ranks] of one value, or one array over steps, by rank."""
    steps = next((value for value in values if isinstance(value, np.ndarray)), None)
    if steps is None:
        return np.array(values)
    stacked = np.empty((*steps.shape, len(values)))
    for rank, value in enumerate(values):
        stacked[..., rank] = value
    return stacked
