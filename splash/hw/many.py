"""Many steps tallied at once, in columns: the same counts as `Counting.one` makes of each.

A policy asks about some dozens of steps at a time. Counted and priced one by one they take several times as long.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from splash.hw import ops
from splash.hw.attention import AttentionCost, PromptReads, chooses, selected_pairs
from splash.hw.classes import AT_HOME, CHUNKS, COUNTS, DECODES, WAYS, AtHome, Counts, Way
from splash.hw.figures import Figure, over_ranks
from splash.hw.tally import KINDS, ChunkReads, Counting, DecodeReads, Reads, Rows, ScoredReads, Tally
from splash.hw.traffic import Traffic
from splash.layout.work import DecodeRows, PromptRows, Work

Column = npt.NDArray[Any]
"""One value for each group of decodes, or for each chunk; or several columns, [columns, values]."""
Sums = npt.NDArray[Any]
"""[..., parts, 1 or ranks]. A part is all decodes of a step, or all its chunks; [..., steps, 1 or ranks] by step."""

PROJECTED = slice(Counts._fields.index("whole"), None)
DECODE_KINDS = (False, True, True)
"""Whether decodes are attended with all heads: by head, by an owner, in stripes."""
STRIPED = np.array([False, False, True]).reshape(-1, 1, 1)
CHUNK_KINDS = tuple(whole for whole, _ in KINDS)
ABSORBED = np.array([absorbed for _, absorbed in KINDS]).reshape(-1, 1, 1)


def tally_of(works: Sequence[Work], counting: Counting) -> Tally:
    """Of steps whose contexts are numbers."""
    decodes, decoding = _distinct([work.decodes for work in works])
    prompts, prompting = _distinct([work.prompts for work in works])
    rows = _Rows(decodes, prompts, counting)

    def by_step(sums: Sums) -> Sums:
        return sums.take(decoding, 1) + sums.take(len(decodes) + prompting, 1)

    counts, at_home = Counts(*by_step(rows.counts())), AtHome(*by_step(rows.at_home()))
    gathering_s, candidates = by_step(rows.travelling())
    return Tally(
        decodes=counts.decodes,
        chunked=counts.chunked,
        sampled=np.array([work.sampled for work in works], np.intp)[:, np.newaxis],
        scatters=(counts.unscattered == 0) & (counts.decodes + counts.chunked >= counting.ranks),
        rows=Rows(
            counts.shard,
            counts.shard_absorbed,
            counts.whole + at_home.whole,
            counts.whole_absorbed + at_home.whole_absorbed,
            counts.halved,
        ),
        traffic=Traffic(
            over_ranks(at_home.received),
            np.add.reduce(at_home.received, axis=-1, keepdims=True),
            counts.to_stripes,
            counts.striped,
            gathering_s,
            candidates,
        ),
        decode_reads=[_Expanded(reads, decoding) for reads in rows.decode_reads()],
        chunk_reads=[_Expanded(reads, prompting) for reads in rows.chunk_reads()],
    )


def _distinct(parts: Sequence[Any]) -> tuple[list[Any], Column]:
    """Parts that are not the same object, and which of them each is: many steps share their decodes, or chunks."""
    places: dict[int, int] = {}
    which = [places.setdefault(id(part), len(places)) for part in parts]
    return list({id(part): part for part in parts}.values()), np.array(which, np.intp)


@dataclass(frozen=True, slots=True)
class _Expanded:
    """What is attended over in many steps: of each kind, in those that differ."""

    reads: Reads
    """[kinds, distinct steps, ranks]"""
    which: Column
    """Of the distinct ones, by step."""

    def priced(self, attention: AttentionCost) -> Figure:
        seconds, *others = np.asarray(self.reads.priced(attention))
        for kind in others:
            seconds = seconds + kind
        steps: Sums = seconds.take(self.which, 0)
        return steps


class _Places:
    """Where values of rows are added up: in cells, each by the rank where a row counts, or on all ranks."""

    def __init__(self, cells: Column, homes: Column, shape: tuple[int, ...], ranks: int) -> None:
        """Of each value: its cell of that many, and its rank; `ranks` for all of them."""
        self._places = cells * (ranks + 1) + homes
        self._shape = *shape, ranks + 1
        self._size = math.prod(self._shape)

    def sums(self, columns: Column) -> Sums:
        """[columns, *shape, ranks], in the order of the values: as one adds them up one by one."""
        count = len(columns)
        places = self._size * np.arange(count)[:, np.newaxis] + self._places
        sums = np.bincount(places.ravel(), columns.ravel(), count * self._size).reshape(count, *self._shape)
        return sums[..., :-1] + sums[..., -1:]

    def most(self, column: Column) -> Sums:
        """[*shape, ranks], the largest values; none is negative."""
        largest = np.zeros(self._size)
        np.maximum.at(largest, self._places, column)
        largest = largest.reshape(self._shape)
        return np.maximum(largest[..., :-1], largest[..., -1:])


class _Rows:
    """Groups of decodes, and chunks after them, in columns. Each belongs to a part: a step's decodes, or its chunks."""

    def __init__(
        self,
        decodes: Sequence[tuple[DecodeRows, ...]],
        prompts: Sequence[tuple[PromptRows, ...]],
        counting: Counting,
    ) -> None:
        self._counting = counting
        self._num_decodings, self._num_promptings = len(decodes), len(prompts)
        split = sum(map(len, decodes))
        self._decodes, self._chunks = slice(split), slice(split, None)
        rows = chain(_decode_rows(decodes), _chunk_rows(prompts, len(decodes)))
        table = np.fromiter(chain.from_iterable(rows), np.float64).reshape(-1, 6).T
        self._part, self._class, self._home = table[:3].astype(np.intp)
        self._count = table[3]
        self._context, self._selected = table[4:, :split]
        self._start = table[4, split:]
        self._end = self._start + self._count[split:]
        self._beyond = self._end > counting.keeps
        self._class[split:] += self._beyond | (not counting.unabsorbed)
        self._way = way = Way(*WAYS.take(self._class, 1))
        self._projected = np.where(way.divided, -(-self._count // counting.ranks), self._count)

    def counts(self) -> Sums:
        """[fields of Counts, parts, 1]"""
        sums = self._by_class(self._count) @ COUNTS
        sums[:, PROJECTED] = self._by_class(self._projected) @ COUNTS[:, PROJECTED]
        return sums.T[..., np.newaxis].astype(np.intp)

    def at_home(self) -> Sums:
        """[fields of AtHome, parts, ranks]"""
        shape = (self._num_decodings + self._num_promptings,)
        places = _Places(self._part, self._home, shape, self._counting.ranks)
        return places.sums(self._count * AT_HOME.take(self._class, 1)).astype(np.intp)

    def travelling(self) -> Sums:
        """[2, parts, 1]: seconds in which histories come, bytes of candidates."""
        way, traffic, ranks = self._way, self._counting.traffic, self._counting.ranks
        columns = np.zeros((2, len(self._count)))
        gathered = way.gathered[self._chunks]
        if gathered.any():
            whole = way.divided[self._chunks] > 0
            columns[0, self._chunks] = gathered * traffic.gathering_s(self._start, whole=whole)
        scored = way.proposes * np.concatenate([chooses(self._selected, self._context), self._beyond])
        if scored.any():
            length = np.concatenate([self._context / self._count[self._decodes], self._end])
            proposed = traffic.proposed(self._count, length, np.where(way.striped, ranks, 1))
            columns[1] = scored * proposed
        size = self._num_decodings + self._num_promptings
        sums = [np.bincount(self._part, column, size) for column in columns]
        return np.array(sums)[..., np.newaxis]

    def decode_reads(self) -> Iterator[DecodeReads]:
        """Of all kinds of decodes, [kinds, distinct, ranks]; nothing if there are none."""
        if not self._context.size:
            return
        rows, shape = self._decodes, (len(DECODE_KINDS), self._num_decodings)
        cells = self._way.kind[rows] * shape[1] + self._part[rows]
        places = self._places(rows, cells, self._way.alone[rows], shape)
        attended, seen, kept = places.sums(np.array([self._count[rows], self._context, self._selected]))
        share = np.where(STRIPED, self._counting.ranks, 1)
        yield DecodeReads(DECODE_KINDS, attended, seen / share, kept / share)

    def chunk_reads(self) -> Iterator[Reads]:
        """Of all kinds of chunks, [kinds, distinct, ranks]; nothing if there are none."""
        if not self._start.size:
            return
        way, rows, shape = self._way, self._chunks, (len(KINDS), self._num_promptings)
        parts = self._part[rows] - self._num_decodings
        places = self._places(rows, way.kind[rows] * shape[1] + parts, way.alone[rows], shape)
        yield ChunkReads(CHUNK_KINDS, ABSORBED, self._reads(slice(None), places, way.divided[rows]))
        if self._beyond.any():
            beyond = np.flatnonzero(self._beyond)
            scored = rows.start + beyond
            places = self._places(scored, parts[beyond], way.owned[scored], (1, shape[1]))
            yield ScoredReads(self._reads(beyond, places, way.striped[scored]))

    def _places(self, rows: Any, cells: Column, alone: Column, shape: tuple[int, ...]) -> _Places:
        """Where `rows` are attended: by their owners if `alone`."""
        ranks = self._counting.ranks
        return _Places(cells, np.where(alone, self._home[rows], ranks), shape, ranks)

    def _reads(self, chunks: Any, places: _Places, shared: Column) -> PromptReads:
        """Of some of the chunks; the ranks have equal shares of those that are `shared`."""
        counting = self._counting
        start, count = self._start[chunks], self._count[self._chunks][chunks]
        share = np.where(shared, 1 / counting.ranks, 1.0)
        pairs = share * ops.prefill_pairs(counting.prefill, count, start)
        selected = share * selected_pairs(start, count, counting.keeps)
        end, projected = self._end[chunks], self._projected[self._chunks][chunks]
        reads = PromptReads(counting.prefill)
        reads.pairs, reads.selected, reads.rows, reads.tokens, projected = places.sums(
            np.array([pairs, selected, count, end, projected])
        )
        reads.projected = projected.astype(np.intp)
        reads.longest = places.most(end)
        return reads

    def _by_class(self, column: Column) -> Column:
        """[parts, classes]"""
        shape = self._num_decodings + self._num_promptings, len(COUNTS)
        return np.bincount(self._part * shape[1] + self._class, column, math.prod(shape)).reshape(shape)


def _decode_rows(decodes: Sequence[tuple[DecodeRows, ...]]) -> Iterator[tuple[float, ...]]:
    """Part, class, home, count and two figures of each."""
    for part, groups in enumerate(decodes):
        for at, rows, context, selected in groups:
            yield part, DECODES[at.layout], at.home, rows, context, selected


def _chunk_rows(prompts: Sequence[tuple[PromptRows, ...]], first: int) -> Iterator[tuple[float, ...]]:
    """As `_decode_rows`, where parts are counted from `first` on; there is but one figure."""
    for part, chunks in enumerate(prompts, first):
        for at, method, start, count in chunks:
            yield part, CHUNKS[at.layout][method], at.home, count, start, 0
