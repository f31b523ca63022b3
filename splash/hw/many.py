"""Many steps tallied at once, in columns: the same counts as `Counting.one` makes of each.

A policy asks about some dozens of steps at a time. Counted and priced one by one they take several times as long.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from splash.hw.attention import AttentionCost, PromptReads, chooses
from splash.hw.figures import Figure, either, over_ranks
from splash.hw.tally import KINDS, ChunkReads, Counting, DecodeReads, Reads, Rows, ScoredReads, Tally
from splash.hw.traffic import Traffic
from splash.layout.layouts import LAYOUTS, Placement, Projection
from splash.layout.rows import Method
from splash.layout.work import DecodeRows, PromptRows, Work

Column = npt.NDArray[Any]
"""One value for each group of decodes, or for each chunk; or several columns, [columns, values]."""
Steps = npt.NDArray[Any]
"""Figures of steps, [steps, 1] or [steps, ranks]; of several columns, [columns, steps, 1 or ranks]."""

MOST_COLUMNS = 9
CODES = {layout: code for code, layout in enumerate(LAYOUTS.values())}
SHARDED = np.array([layout.projection is Projection.SHARDED for layout in CODES])
OWNED = np.array([layout.placement is Placement.OWNER for layout in CODES])
STRIPED = np.array([layout.placement is Placement.STRIPED for layout in CODES])


def tally_of(works: Sequence[Work], counting: Counting) -> Tally:
    """Of steps whose contexts are numbers."""
    tally, received = _decoding([work.decodes for work in works], counting)
    tally.sampled = np.array([[work.sampled] for work in works])
    if any(work.prompts for work in works):
        received = received + _add_chunks([work.prompts for work in works], tally, counting)
    tally.scatters &= tally.decodes + tally.chunked >= counting.ranks
    tally.traffic.into_owner = over_ranks(received)
    tally.traffic.to_owners = received.sum(axis=-1, keepdims=True)
    return tally


class _Sums:
    """Adds columns up: by what each value belongs to, and by the rank where it counts. At most MOST_COLUMNS at once."""

    def __init__(self, group: Column, home: Column, num_groups: int, ranks: int) -> None:
        """`group`, `home`: of each value."""
        self._group = group
        self._place = group * ranks + home
        self._shape = num_groups, ranks
        starts = np.arange(MOST_COLUMNS)[:, np.newaxis]
        self._groups = num_groups * starts + group
        self._places = num_groups * ranks * starts + self._place
        """Of each value of each column, one column after the other."""

    def of(self, columns: Column) -> Steps:
        """[columns, groups, 1], of several columns."""
        return _added(columns, self._groups, self._shape[0]).reshape(len(columns), -1, 1)

    def by_home(self, columns: Column) -> Steps:
        """[columns, groups, ranks]"""
        num_groups, ranks = self._shape
        return _added(columns, self._places, num_groups * ranks).reshape(len(columns), num_groups, ranks)

    def placed(self, columns: Column, alone: Column) -> Steps:
        """What counts at home alone, and everywhere: [columns, groups, ranks], [columns, groups, 1] without the one."""
        everywhere = self.of(columns * ~alone)
        return everywhere + self.by_home(columns * alone) if alone.any() else everywhere

    def most(self, column: Column, alone: Column) -> Steps:
        """As `placed`, the largest values of one column, none of which is negative."""
        everywhere = np.zeros((self._shape[0], 1))
        np.maximum.at(everywhere[:, 0], self._group, column * ~alone)
        if not alone.any():
            return everywhere
        largest = np.zeros(self._shape)
        np.maximum.at(largest.reshape(-1), self._place, column * alone)
        return np.maximum(everywhere, largest)


def _added(columns: Column, places: Column, num_places: int) -> Column:
    """In the order of the values: as one adds them up one by one."""
    count = len(columns)
    return np.bincount(places[:count].ravel(), columns.ravel(), count * num_places)


class _Kinds:
    """Rows of several kinds, of those that there are."""

    def __init__(self, kind: Column, step: Column, home: Column, num_steps: int, ranks: int) -> None:
        self.present = sorted(set(kind.tolist()))
        self._shape = len(self.present), num_steps
        group = np.searchsorted(self.present, kind) * num_steps + step
        self._sums = _Sums(group, home, len(self.present) * num_steps, ranks)

    def placed(self, columns: Column, alone: Column) -> Steps:
        """[columns, kinds, steps, 1 or ranks]"""
        return self._sums.placed(columns, alone).reshape(len(columns), *self._shape, -1)

    def reads(self, columns: PromptReads, alone: Column) -> PromptReads:
        """Of figures that are columns."""
        table = [columns.pairs, columns.selected, columns.rows, columns.tokens, columns.projected]
        reads = PromptReads(columns.prefill)
        reads.pairs, reads.selected, reads.rows, reads.tokens, reads.projected = self.placed(
            np.array(table), alone
        )
        reads.longest = self._sums.most(np.asarray(columns.longest), alone).reshape(*self._shape, -1)
        return reads


@dataclass(frozen=True, slots=True)
class _Expanded:
    """What is attended over in many steps: of each kind, in those that differ."""

    reads: Reads
    """[kinds, distinct steps, 1 or ranks]"""
    which: Column
    """Of the distinct ones, by step."""

    def priced(self, attention: AttentionCost) -> Figure:
        seconds, *others = np.asarray(self.reads.priced(attention))
        for kind in others:
            seconds = seconds + kind
        steps: Steps = seconds[self.which]
        return steps


def _distinct(parts: Sequence[Any]) -> tuple[list[Any], Column]:
    """Parts that are not the same object, and which of them each is: many steps share their decodes, or chunks."""
    places: dict[int, int] = {}
    which = [places.setdefault(id(part), len(places)) for part in parts]
    return list({id(part): part for part in parts}.values()), np.array(which)


def _columns(rows: Iterable[tuple[float, ...]], width: int) -> Column:
    """[width, values]"""
    return np.fromiter(chain.from_iterable(rows), np.float64).reshape(-1, width).T


def _counts(sums: Steps) -> Steps:
    """To look up with."""
    return sums.astype(np.intp)


def _decoding(decodes: Sequence[tuple[DecodeRows, ...]], counting: Counting) -> tuple[Tally, Steps]:
    """The tally of steps of decodes alone, and the rows whose queries come to each rank as an owner."""
    distinct, which = _distinct(decodes)
    ranks = counting.ranks
    table = _columns(
        (
            (step, CODES[group.at.layout], group.at.home, group.rows, group.context, group.selected)
            for step, groups in enumerate(distinct)
            for group in groups
        ),
        width=6,
    )
    rows, context, selected = table[3:]
    step, code, home = _counts(table[:3])
    sums = _Sums(step, home, len(distinct), ranks)
    sharded, owned, striped = SHARDED[code], OWNED[code], STRIPED[code]
    dp, cp, dop, dcp = owned & ~sharded, striped & ~sharded, owned & sharded, striped & sharded
    count, shard, halved, to_stripes, in_part, unscattered = sums.of(
        rows * np.array([rows > 0, sharded, cp, dcp, striped, ~dp])
    )[:, which]
    whole, received = sums.by_home(rows * np.array([dp, dop]))[:, which]
    proposed = counting.traffic.proposed(rows, context / rows, ranks)
    (candidates,) = sums.of((striped * chooses(selected, context) * proposed)[np.newaxis])[:, which]

    tally = Tally(
        decodes=_counts(count),
        chunked=0,
        sampled=0,
        scatters=unscattered == 0,
        rows=Rows(_counts(shard), _counts(shard), _counts(whole), _counts(whole), _counts(halved)),
        traffic=Traffic(to_stripes=to_stripes, striped=in_part, candidates=candidates),
    )
    kinds = _Kinds(owned + 2 * striped, step, home, len(distinct), ranks)
    if kinds.present:
        attended, seen, kept = kinds.placed(table[3:], owned)
        kind = np.array(kinds.present).reshape(-1, 1, 1)
        share = np.where(kind == 2, ranks, 1)
        reads = DecodeReads(kind > 0, attended, seen / share, kept / share)
        tally.decode_reads.append(_Expanded(reads, which))
    return tally, received


def _add_chunks(prompts: Sequence[tuple[PromptRows, ...]], tally: Tally, counting: Counting) -> Steps:
    """Adds chunks to the tally of steps; returns the rows whose queries come to each rank as an owner."""
    distinct, which = _distinct(prompts)
    ranks, keeps = counting.ranks, counting.keeps
    table = _columns(
        (
            (
                step,
                CODES[chunk.at.layout],
                chunk.at.home,
                chunk.method is Method.EXCHANGE,
                chunk.method is Method.GATHER,
                chunk.start,
                chunk.count,
            )
            for step, chunks in enumerate(distinct)
            for chunk in chunks
        ),
        width=7,
    )
    step, code, home = _counts(table[:3])
    exchanged, gathered = table[3:5] > 0
    start, count = table[5:]
    sums = _Sums(step, home, len(distinct), ranks)
    sharded, owned, striped = SHARDED[code], OWNED[code], STRIPED[code]
    dp, cp, dop, dcp = owned & ~sharded, striped & ~sharded, owned & sharded, striped & sharded
    beyond = start + count > keeps
    absorbed = exchanged | beyond | (not counting.unabsorbed)
    at_owner, divided = dp | (dop & exchanged), cp | (dcp & exchanged)
    projected = np.where(divided, -(-count // ranks), count)

    masks = [
        count > 0,
        sharded,
        sharded & absorbed,
        cp & exchanged,
        dcp & exchanged,
        striped & exchanged,
        sharded | exchanged,
    ]
    alike, alone = [cp & ~exchanged, cp & ~exchanged & absorbed], [dp, dp & absorbed, dop & exchanged]
    chunked, shard, shard_absorbed, halved, to_stripes, in_part, unscattered, own, own_absorbed = sums.of(
        np.concatenate([count * np.array(masks), projected * np.array(alike)])
    )[:, which]
    received: Steps
    whole, whole_absorbed, received = sums.by_home(count * np.array(alone))[:, which]
    rows, traffic, cost = tally.rows, tally.traffic, counting.traffic
    tally.chunked = _counts(chunked)
    tally.scatters &= unscattered == 0
    rows.shard = rows.shard + _counts(shard)
    rows.shard_absorbed = rows.shard_absorbed + _counts(shard_absorbed)
    rows.whole = rows.whole + _counts(whole + own)
    rows.whole_absorbed = rows.whole_absorbed + _counts(whole_absorbed + own_absorbed)
    rows.halved = rows.halved + _counts(halved)

    if gathered.any():
        coming_s = either(cp, cost.gathering_s(start, whole=True), cost.gathering_s(start, whole=False))
        (traffic.gathering_s,) = sums.of((gathered * coming_s)[np.newaxis])[:, which]
    traffic.to_stripes = traffic.to_stripes + to_stripes
    traffic.striped = traffic.striped + in_part

    columns = PromptReads(counting.prefill)
    columns.add(start, count, keeps, share=np.where(divided, 1 / ranks, 1.0), projected=projected)
    kinds = _Kinds(2 * (at_owner | divided) + absorbed, step, home, len(distinct), ranks)
    whole, absorbed = np.array([KINDS[kind] for kind in kinds.present]).T[..., np.newaxis, np.newaxis]
    reads = ChunkReads(whole, absorbed, kinds.reads(columns, at_owner))
    tally.chunk_reads.append(_Expanded(reads, which))
    if beyond.any():
        share = np.where(striped, 1 / ranks, 1.0)
        scored = PromptReads(counting.prefill)
        scored.add(start[beyond], count[beyond], keeps, share=share[beyond], projected=projected[beyond])
        kinds = _Kinds(0 * step[beyond], step[beyond], home[beyond], len(distinct), ranks)
        tally.chunk_reads.append(_Expanded(ScoredReads(kinds.reads(scored, owned[beyond])), which))
        holders = np.where(striped, ranks, 1)
        proposed = (beyond & (striped | (dop & gathered))) * cost.proposed(count, start + count, holders)
        (candidates,) = sums.of(proposed[np.newaxis])[:, which]
        traffic.candidates = traffic.candidates + candidates
    return received
