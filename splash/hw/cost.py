"""Seconds of a step, by part, for a model on a number of devices (DESIGN §2, REFERENCE §2).

Counts come from the model's spec, seconds per operation from the hardware profile. All ranks meet in every layer, so
a step takes as long as its slowest rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from splash.hw import ops
from splash.hw.attention import AttentionCost
from splash.hw.figures import Figure, each_step, either, most, over_ranks
from splash.hw.many import tally_of
from splash.hw.precision import Precision
from splash.hw.profile import HardwareProfile
from splash.hw.rows import num_attention_layers, row_tables
from splash.hw.tally import Counting, Reads, Rows, Tally
from splash.hw.traffic import TrafficCost
from splash.layout.change import Change, ChangeCost
from splash.layout.work import Work
from splash.spec.model import ModelSpec

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

    def by_step(self) -> StepCost:
        """Of figures of ranks that are alike."""
        return StepCost(
            each_step(self.projections),
            each_step(self.attention),
            each_step(self.exchange),
            each_step(self.experts),
            each_step(self.collectives),
            each_step(self.overhead),
        )

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
        self._attention = AttentionCost(spec, profile, ranks, precision, max_rows)
        self._traffic = TrafficCost(spec, profile, ranks, precision)
        self._counting = Counting(
            ranks, self.keeps, self._attention.prefill, unabsorbed=unabsorbed, traffic=self._traffic
        )
        self._overlapped = overlapped_copies
        self._node = int(profile.node.ranks.value)
        self._outside = max(0, ranks - self._node) / max(1, ranks - 1)
        """Share of the other ranks that are in other nodes."""
        self._scattered = scattered and spec.kda is None
        self._layers = num_attention_layers(spec)

    def step(self, work: Work) -> StepCost:
        """Seconds of `work`; where its contexts are arrays over steps, so are the results."""
        return self._priced(self._counting.one(work)).by_step()

    def step_s(self, work: Work) -> float:
        """Seconds of one step."""
        total = self._priced(self._counting.one(work)).total
        return float(total if isinstance(total, float) else np.max(total))

    def steps_s(self, works: Sequence[Work]) -> list[float]:
        """Seconds of each of many steps, to the last bit as one by one; faster from half a dozen on."""
        totals = each_step(self._priced(tally_of(works, self._counting)).total)
        found: list[float] = np.asarray(totals).tolist()
        return found

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

    def _priced(self, tally: Tally) -> StepCost:
        """Each part a figure of ranks that are alike."""
        num_rows = tally.decodes + tally.chunked
        by_rank = self._whole_s(tally.rows)
        projected = over_ranks(by_rank)
        attended = self._attended_s(tally.decode_reads) + self._attended_s(tally.chunk_reads)
        alike, closing = self._rows_between(tally, num_rows)
        return StepCost(
            projections=alike + self._shard_s(tally.rows) + projected,
            attention=over_ranks(by_rank + attended) - projected + self._recurrent_s(tally),
            exchange=self._traffic.exchange_s(tally.traffic),
            experts=self._tables.ffn[num_rows],
            collectives=closing,
            overhead=self._overhead_s(tally.sampled),
        )

    def _shard_s(self, rows: Rows) -> Figure:
        tables, halved = self._tables.shard, rows.halved
        projecting = tables.q[rows.shard] + tables.uk[rows.shard_absorbed]
        return projecting + tables.uv[rows.shard_absorbed + halved] + tables.o[rows.shard + halved]

    def _whole_s(self, rows: Rows) -> Figure:
        """Of each rank."""
        tables, halved = self._tables.whole, rows.halved
        projecting = tables.q[rows.whole + halved] + tables.uk[rows.whole_absorbed + halved]
        return projecting + tables.uv[rows.whole_absorbed] + tables.o[rows.whole]

    def _attended_s(self, reads: Sequence[Reads]) -> Figure:
        """Of each rank."""
        seconds: Figure = 0.0
        for some in reads:
            seconds = seconds + some.priced(self._attention)
        return seconds

    def _rows_between(self, tally: Tally, num_rows: Figure) -> tuple[Figure, Figure]:
        """What a rank computes of each of its rows whatever the layout, and the collectives that close layers: with all
        rows on every rank, or divided where they may be and that is faster."""
        tables = self._tables
        alike, closing = tables.replicated[num_rows], tables.closing[num_rows]
        if not self._scattered or tally.scatters is False:
            return alike, closing
        own = most(over_ranks(tally.rows.whole), -(-num_rows // self.ranks))
        alike_own, closing_own = tables.replicated[own], tables.scattered_closing[num_rows]
        divided = tally.scatters & (alike_own + closing_own < alike + closing)
        return either(divided, alike_own, alike), either(divided, closing_own, closing)

    def _recurrent_s(self, tally: Tally) -> Figure:
        """KDA: every rank updates the states of its own heads, of all rows."""
        kda = self.spec.kda
        if kda is None:
            return 0.0
        heads = kda.num_heads // self.ranks
        width, state_bytes = heads * kda.head_dim, 4.0 * heads * kda.head_dim**2
        chunks = -(-tally.chunked // KDA_CHUNK)
        seconds = ops.recurrent_s(self.profile, tally.decodes, heads, kda.head_dim, state_bytes)
        seconds = seconds + ops.recurrent_s(self.profile, chunks, heads, kda.head_dim, state_bytes)
        inside = 3 * (KDA_CHUNK + kda.head_dim)
        seconds = seconds + ops.gemm_s(self.profile, tally.chunked, width, inside, "bfloat16")
        return (self.spec.num_layers - self._layers) * seconds

    def _overhead_s(self, sampled: Figure) -> Figure:
        host = self.profile.host
        seconds = host.step_overhead.value + self._tables.head[sampled]
        if host.request_overhead is not None:
            seconds = seconds + host.request_overhead.value * sampled
        if host.layer_overhead is not None:
            seconds = seconds + host.layer_overhead.value * self.spec.num_layers
        return seconds
