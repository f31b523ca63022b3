"""Seconds of a step, by part, for a model on a number of devices (DESIGN §2, REFERENCE §2).

Counts come from the model's spec, seconds per operation from the hardware profile. All ranks meet in every layer, so
a step takes as long as its slowest rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from splash.hw import ops
from splash.hw.attention import AttentionCost, PlacedReads, chooses
from splash.hw.figures import Figure, least
from splash.hw.precision import Precision
from splash.hw.profile import HardwareProfile
from splash.hw.rows import HeadTables, num_attention_layers, num_indexers, row_tables
from splash.layout.change import Change, ChangeCost
from splash.layout.layouts import CP, DCP, DOP, DP, Placement
from splash.layout.rows import Method
from splash.layout.work import DecodeRows, PromptRows, Work, may_scatter
from splash.spec.model import MLASpec, ModelSpec

PARTS = ("q", "uk", "uv", "o")
"""Of the attention weights that change place."""
PLACEMENTS = tuple(Placement)
LSE_BYTES = 4
CANDIDATE_BYTES = 8
"""Score and position of a key that a holder of the history proposes where others attend too."""
KDA_CHUNK = 64
"""Tokens that the chunked form of a KDA prompt takes at a time."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """Predicted seconds of a step by part; each a float, or an array over steps."""

    projections: Figure
    attention: Figure
    exchange: Figure
    experts: Figure
    collectives: Figure
    overhead: Figure

    @property
    def total(self) -> Figure:
        attending = self.projections + self.attention + self.exchange
        return attending + self.experts + self.collectives + self.overhead


class CostModel:
    """Prices steps. What it says never changes; a step has at most `max_rows` rows."""

    def __init__(
        self,
        *,
        spec: ModelSpec,
        profile: HardwareProfile,
        ranks: int,
        precision: Precision,
        max_rows: int,
        scattered: bool = True,
        unabsorbed: bool = True,
        overlapped_copies: bool = True,
        balanced_experts: bool = True,
        divided_latents: bool = False,
    ) -> None:
        """`scattered`: the port divides rows over the ranks between layers where `may_scatter` allows it and it pays.
        `unabsorbed`: prompts may attend with keys and values projected up from the latents. `overlapped_copies`:
        background copies run beside the step and take memory bandwidth from it; else the step waits for them.
        `balanced_experts` and `divided_latents`: as in `row_tables`."""
        self.spec = spec
        self.profile = profile
        self.ranks = ranks
        self.precision = precision
        self._tables = row_tables(
            spec, profile, ranks, precision, max_rows, balanced=balanced_experts, divided=divided_latents
        )
        self._attention = AttentionCost(spec, profile, ranks, precision)
        self._wire = _Wire.of(spec, precision)
        self._unabsorbed = unabsorbed
        self._overlapped = overlapped_copies
        self._node = int(profile.node.ranks.value)
        self._outside = max(0, ranks - self._node) / max(1, ranks - 1)
        """Share of the other ranks that are in other nodes."""
        self._scattered = scattered and spec.kda is None
        self._layers = num_attention_layers(spec)
        self._indexers = num_indexers(spec)
        self._last: _Decoding | None = None

    def step(self, work: Work) -> StepCost:
        """Seconds of `work`; where its contexts are arrays over steps, so are the results."""
        tables, num_rows = self._tables, work.num_rows
        decoding = self._decoding(work.decodes)
        rows, traffic, attended = decoding.rows, decoding.traffic, decoding.attended
        if work.prompts:
            rows, traffic = rows.copy(), traffic.copy()
            attended = attended + self._prompts(work.prompts, rows, traffic)
        by_rank = rows.whole_s(tables.whole)
        projected = max(by_rank)
        divisible = self._scattered and may_scatter(work, self.ranks)
        alike, closing = self._rows_between(rows, num_rows, divisible=divisible)
        return StepCost(
            projections=alike + rows.shard_s(tables.shard) + projected,
            attention=_slowest(by_rank, attended) - projected + self._recurrent_s(work),
            exchange=self._exchange_s(traffic),
            experts=tables.ffn[num_rows],
            collectives=closing,
            overhead=self._overhead_s(work),
        )

    def step_s(self, work: Work) -> float:
        """Seconds of one step."""
        total = self.step(work).total
        return float(total if isinstance(total, float) else np.max(total))

    def steps_s(self, work: Work, prompts: Sequence[Sequence[PromptRows]]) -> list[float]:
        """Seconds of the step of `work`, with each of these chunks in place of its own."""
        return [self.step_s(replace(work, prompts=tuple(chunks))) for chunks in prompts]

    def change(self, change: Change) -> ChangeCost:
        """Seconds and bytes of a change of the target: each rank receives from all others alike."""
        num_bytes = change.num_bytes
        outside = num_bytes * self._outside
        copying_s = self.copy_s(num_bytes - outside) + self.copy_s(outside, between_nodes=outside > 0)
        held_up_s = self.disturbance_s(2 * num_bytes) if self._overlapped else 2 * copying_s
        return ChangeCost(num_bytes, copying_s, held_up_s)

    def copy_s(self, num_bytes: float, *, between_nodes: bool = False) -> float:
        """Seconds until bytes of pages or shards have come from a peer."""
        return float(ops.copy_s(self.profile, num_bytes, between_nodes=between_nodes))

    def apart(self, one: int, other: int) -> bool:
        """Whether two ranks are in different nodes: neighbours share one."""
        return one // self._node != other // self._node

    @property
    def copy_bandwidth(self) -> float:
        """Bytes per second at which a rank receives from all others alike."""
        inside = self.copy_s(1 - self._outside)
        return 1 / (inside + self.copy_s(self._outside, between_nodes=self._outside > 0))

    def disturbance_s(self, num_bytes: float) -> float:
        """Seconds by which copies that read and write `num_bytes` of a rank's memory hold up its step."""
        if self._overlapped:
            return num_bytes / self.profile.memory.bandwidth.value
        return self.copy_s(num_bytes)

    @property
    def keeps(self) -> float:
        """Tokens that a row attends to at most; infinite where attention is dense."""
        return self._attention.keeps

    # ---- parts

    def _decoding(self, decodes: tuple[DecodeRows, ...]) -> _Decoding:
        """What the decodes come to. The last ones are remembered: they are often priced again, beside chunks."""
        last = self._last
        if last is None or last.decodes is not decodes:
            rows, traffic = _Rows(self.ranks), _Traffic()
            attended = self._decodes(decodes, rows, traffic)
            last = self._last = _Decoding(decodes, rows, traffic, attended)
        return last

    def _decodes(self, decodes: Sequence[DecodeRows], rows: _Rows, traffic: _Traffic) -> Figure:
        """Attention seconds of the decode rows: of all ranks alike, or [..., ranks]."""
        for group in decodes:
            layout, home = group.at.layout, group.at.home
            rows.add(layout.name, home, group.rows, Method.EXCHANGE, absorbed=True)
            traffic.add(self._wire, layout.name, home, group.rows, self.ranks)
            if layout.placement is Placement.STRIPED:
                proposed = self._proposed(group.rows, group.context / group.rows, self.ranks)
                traffic.candidates = traffic.candidates + chooses(group.selected, group.context) * proposed
        seconds: Figure = 0.0
        for placement in PLACEMENTS:
            groups = [group for group in decodes if group.at.layout.placement is placement]
            if groups:
                reads = _reads(groups, placement, self.ranks)
                whole = placement is not Placement.BY_HEAD
                seconds = seconds + self._attention.decode_s(*reads, whole=whole)
        return seconds

    def _prompts(self, prompts: Sequence[PromptRows], rows: _Rows, traffic: _Traffic) -> Figure:
        """As `_decodes`, of the chunks; those of one kind are attended together."""
        reads: dict[tuple[bool, bool], PlacedReads] = {}
        scores = self._attention.prompts()
        keeps = self._attention.keeps
        for chunk in prompts:
            layout, home = chunk.at.layout, chunk.at.home
            exchanged = chunk.method is Method.EXCHANGE
            absorbed = exchanged or not self._unabsorbed or chunk.start + chunk.count > keeps
            rows.add(layout.name, home, chunk.count, chunk.method, absorbed=absorbed)
            if exchanged:
                traffic.add(self._wire, layout.name, home, chunk.count, self.ranks)
            elif chunk.method is Method.GATHER:
                traffic.gathers.append(self._gathered(chunk))
            at_owner = layout is DP or (layout is DOP and exchanged)
            divided = layout is CP or (layout is DCP and exchanged)
            kind = at_owner or divided, absorbed
            read = reads[kind] = reads.get(kind) or self._attention.prompts()
            share = 1 / self.ranks if divided else 1.0
            projected = -(-chunk.count // self.ranks) if divided else chunk.count
            here = read.on(home if at_owner else None)
            here.add(chunk.start, chunk.count, keeps, share=share, projected=projected)
            self._score(chunk, scores, traffic)
        seconds: Figure = 0.0
        for (whole, absorbed), read in reads.items():
            price = partial(self._attention.prompt_s, whole=whole, absorbed=absorbed)
            seconds = seconds + read.priced(price)
        return seconds + scores.priced(self._attention.scoring_s)

    def _score(self, chunk: PromptRows, scores: PlacedReads, traffic: _Traffic) -> None:
        """Where the indexer's keys are, there the rows are scored: on every rank, by the owner, or each stripe its own
        tokens. Who attends elsewhere is told the best, not the keys (ADR 0006)."""
        layout, keeps = chunk.at.layout, self._attention.keeps
        if chunk.start + chunk.count <= keeps:
            return
        if layout.placement is Placement.STRIPED:
            scores.on(None).add(chunk.start, chunk.count, keeps, share=1 / self.ranks)
            proposed = self._proposed(chunk.count, chunk.start + chunk.count, self.ranks)
            traffic.candidates = traffic.candidates + proposed
        elif layout.placement is Placement.OWNER:
            scores.on(chunk.at.home).add(chunk.start, chunk.count, keeps, share=1.0)
            if chunk.method is Method.GATHER:
                proposed = self._proposed(chunk.count, chunk.start + chunk.count, 1)
                traffic.candidates = traffic.candidates + proposed
        else:
            scores.on(None).add(chunk.start, chunk.count, keeps, share=1.0)

    def _rows_between(self, rows: _Rows, num_rows: int, *, divisible: bool) -> tuple[float, float]:
        """What a rank computes of each of its rows whatever the layout, and the collectives that close layers: with all
        rows on every rank, or divided where they may be and that is faster."""
        tables = self._tables
        replicated = tables.replicated[num_rows], tables.closing[num_rows]
        if not divisible:
            return replicated
        own = max(rows.own_rows(), -(-num_rows // self.ranks))
        scattered = tables.replicated[own], tables.scattered_closing[num_rows]
        return min(replicated, scattered, key=sum)

    def _gathered(self, chunk: PromptRows) -> tuple[str, float]:
        """The collective that brings a chunk's history, and the bytes that a rank receives: all of it, or its own KV
        group where it attends with the heads of that one alone. Pieces of a long history are taken as one."""
        groups = self.spec.kv_groups(self.ranks)
        num_bytes = (1 - 1 / self.ranks) * chunk.start * self.precision.kv_bytes
        if chunk.at.layout is CP or groups == 1:
            return "all_gather", num_bytes
        return "all_to_all", num_bytes / groups

    def _proposed(self, rows: int, length: Figure, holders: int) -> Figure:
        """Bytes of candidates that a rank receives for rows that see `length` tokens, which `holders` share: of each
        row every holder proposes as many of its keys as the row could choose from it."""
        index = self.spec.indexer
        if index is None:
            return 0.0
        offered = least(index.top_keys, length / index.pool / holders)
        return max(1, holders - 1) * rows * offered * CANDIDATE_BYTES

    def _recurrent_s(self, work: Work) -> Figure:
        """KDA: every rank updates the states of its own heads, of all rows."""
        kda = self.spec.kda
        if kda is None:
            return 0.0
        heads = kda.num_heads // self.ranks
        state_bytes = 4.0 * heads * kda.head_dim**2
        layers = self.spec.num_layers - self._layers
        decodes = sum(group.rows for group in work.decodes)
        tokens = sum(chunk.count for chunk in work.prompts)
        seconds = ops.recurrent_s(self.profile, decodes, heads, kda.head_dim, state_bytes)
        if tokens:
            seconds += ops.recurrent_s(
                self.profile, -(-tokens // KDA_CHUNK), heads, kda.head_dim, state_bytes
            )
            width = heads * kda.head_dim
            seconds += ops.gemm_s(self.profile, tokens, width, 3 * (KDA_CHUNK + kda.head_dim), "bfloat16")
        return layers * seconds

    def _exchange_s(self, traffic: _Traffic) -> Figure:
        """As a layer enters them: all queries travel in one collective, and all outputs return in one."""
        queries = max(traffic.into.values(), default=0.0) + traffic.queries
        exchanged = self._collective_s("all_to_all", queries) + self._collective_s("all_to_all", traffic.back)
        exchanged += sum(self._collective_s(op, num_bytes) for op, num_bytes in traffic.gathers)
        chosen = self._collective_s("all_gather", traffic.candidates)
        return self._layers * exchanged + self._indexers * chosen

    def _collective_s(self, op: str, num_bytes: Figure) -> Figure:
        if isinstance(num_bytes, float) and not num_bytes:
            return 0.0
        return ops.collective_s(self.profile, op, self.ranks, num_bytes)

    def _overhead_s(self, work: Work) -> float:
        host = self.profile.host
        seconds = host.step_overhead.value + self._tables.head[work.sampled]
        if host.request_overhead is not None:
            seconds += host.request_overhead.value * work.sampled
        if host.layer_overhead is not None:
            seconds += host.layer_overhead.value * self.spec.num_layers
        return seconds


@dataclass(frozen=True, slots=True)
class _Wire:
    """Bytes that one row sends in one layer."""

    query: float
    """Absorbed queries of all heads (GQA: also the new keys and values)."""
    output: float
    heads: int

    @classmethod
    def of(cls, spec: ModelSpec, precision: Precision) -> _Wire:
        att, size = spec.attention, precision.activation_bytes
        if isinstance(att, MLASpec):
            query, output = att.num_heads * att.latent_dim, att.num_heads * att.kv_lora_rank
        else:
            output = att.num_heads * att.head_dim
            query = output + 2 * att.num_kv_heads * att.head_dim
        return cls(query * size, output * size, att.num_heads)


class _Traffic:
    """Bytes that a rank receives in one layer."""

    def __init__(self) -> None:
        self.into: dict[int, float] = {}
        """Queries, by owner."""
        self.queries = 0.0
        """Those that every rank receives."""
        self.back = 0.0
        self.gathers: list[tuple[str, float]] = []
        """Collectives that bring a prompt's history, without index keys, and their bytes."""
        self.candidates: Figure = 0.0

    def copy(self) -> _Traffic:
        copy = _Traffic()
        copy.into, copy.gathers = dict(self.into), list(self.gathers)
        copy.queries, copy.back, copy.candidates = self.queries, self.back, self.candidates
        return copy

    def add(self, wire: _Wire, layout: str, home: int, rows: int, ranks: int) -> None:
        """Rows whose queries meet the history where it lies."""
        f = 1 - 1 / ranks
        if layout == "dop":
            self.into[home] = self.into.get(home, 0.0) + f * rows * wire.query
            self.back += f * rows * wire.output / ranks
        elif layout in ("dcp", "cp"):
            self.queries += f * rows * wire.query if layout == "dcp" else 0.0
            self.back += f * rows * (wire.output + LSE_BYTES * wire.heads)


class _Rows:
    """Rows by the weights that compute them: the rank's head shard (all ranks alike), or whole weights by rank."""

    def __init__(self, ranks: int) -> None:
        self.shard = dict.fromkeys(PARTS, 0)
        self.whole = {part: [0] * ranks for part in PARTS}
        self._ranks = ranks

    def copy(self) -> _Rows:
        copy = _Rows(self._ranks)
        copy.shard = dict(self.shard)
        copy.whole = {part: list(rows) for part, rows in self.whole.items()}
        return copy

    def add(self, layout: str, home: int, count: int, method: Method, *, absorbed: bool) -> None:
        parts = PARTS if absorbed else ("q", "o")
        if layout == "dp":
            for part in parts:
                self.whole[part][home] += count
        elif layout == "cp" and method is Method.GATHER:
            own = -(-count // self._ranks)
            for part in parts:
                self.whole[part] = [n + own for n in self.whole[part]]
        elif layout == "cp":
            for part in ("q", "uk"):
                self.whole[part] = [n + count for n in self.whole[part]]
            for part in ("uv", "o"):
                self.shard[part] += count
        else:
            for part in parts:
                self.shard[part] += count

    def own_rows(self) -> int:
        """Rows of the busiest rank, where rows are scattered."""
        return max(self.whole["o"])

    def shard_s(self, tables: HeadTables) -> float:
        shard = self.shard
        return tables.q[shard["q"]] + tables.uk[shard["uk"]] + tables.uv[shard["uv"]] + tables.o[shard["o"]]

    def whole_s(self, tables: HeadTables) -> list[float]:
        """By rank."""
        by_part = zip(*(self.whole[part] for part in PARTS), strict=True)
        return [tables.q[q] + tables.uk[uk] + tables.uv[uv] + tables.o[o] for q, uk, uv, o in by_part]


@dataclass(frozen=True, slots=True)
class _Decoding:
    """The decodes of a step, and what they alone come to: not to be added to."""

    decodes: tuple[DecodeRows, ...]
    rows: _Rows
    traffic: _Traffic
    attended: Figure
    """Seconds of attention: of all ranks alike, or [..., ranks]."""


def _reads(decodes: Sequence[DecodeRows], placement: Placement, ranks: int) -> tuple[Figure, Figure, Figure]:
    """Rows, context and selected tokens that each rank attends over, of decodes of one placement: numbers where one
    step's ranks are alike, else [..., ranks], or [..., 1] where those of several steps are."""
    if placement is Placement.OWNER:
        rows: list[int] = [0] * ranks
        context: list[Figure] = [0.0] * ranks
        selected: list[Figure] = [0.0] * ranks
        for group in decodes:
            home = group.at.home
            rows[home] += group.rows
            context[home] = context[home] + group.context
            selected[home] = selected[home] + group.selected
        return np.array(rows), _stacked(context), _stacked(selected)
    share = ranks if placement is Placement.STRIPED else 1
    seen, kept = sum(group.context for group in decodes), sum(group.selected for group in decodes)
    return sum(group.rows for group in decodes), _each_rank(seen / share), _each_rank(kept / share)


def _stacked(values: list[Figure]) -> Figure:
    """[..., ranks] of one value, or one array over steps, by rank."""
    steps = next((value for value in values if isinstance(value, np.ndarray)), None)
    if steps is None:
        return np.array(values)
    stacked = np.empty((*steps.shape, len(values)))
    for rank, value in enumerate(values):
        stacked[..., rank] = value
    return stacked


def _each_rank(value: Figure) -> Figure:
    """A value, or an array over steps, that all ranks have."""
    return value[..., np.newaxis] if isinstance(value, np.ndarray) else value


def _slowest(projected: list[float], attended: Figure) -> Figure:
    """Seconds of the slowest rank, of one step or of each: all ranks alike, or [..., ranks]."""
    if not isinstance(attended, np.ndarray):
        return max(projected) + attended
    slowest = (np.array(projected) + attended).max(axis=-1)
    return slowest if slowest.ndim else float(slowest)
