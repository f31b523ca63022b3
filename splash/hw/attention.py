"""Seconds of attention on one rank, all layers: over cached tokens for decodes, over pairs for prompt chunks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from splash.hw import ops
from splash.hw.figures import Condition, Figure, either, least, most
from splash.hw.precision import Precision
from splash.hw.profile import HardwareProfile, Prefill
from splash.hw.rows import KindsTable, Table, num_attention_layers, num_indexers
from splash.spec.model import GQASpec, MLASpec, ModelSpec

SCORE_BYTES = 4
ROUNDING = 1e-9
MANY = 4
"""Ranks from which on it is faster to price them as one array."""


class PromptReads:
    """What a rank has to attend to of the chunks of one kind."""

    def __init__(self, prefill: Prefill) -> None:
        """`prefill`: the kernel, which computes pairs in whole tiles."""
        self.prefill = prefill
        self.pairs: Figure = 0.0
        """Causal (row, token) pairs."""
        self.selected: Figure = 0.0
        """Those kept by sparse attention."""
        self.rows: Figure = 0
        """Of which they are."""
        self.tokens: Figure = 0
        """So far, of all prompts."""
        self.longest: Figure = 0
        """Tokens so far of the longest prompt."""
        self.projected: Figure = 0
        """Rows whose queries this rank projects."""

    def add(
        self, start: Figure, count: Figure, keeps: float, *, share: Figure, projected: Figure = 0
    ) -> None:
        """A chunk, of whose (row, token) pairs the rank has `share`, and projects queries of so many rows."""
        self.pairs = self.pairs + share * ops.prefill_pairs(self.prefill, count, start)
        self.selected = self.selected + share * selected_pairs(start, count, keeps)
        self.rows, self.tokens = self.rows + count, self.tokens + start + count
        self.longest, self.projected = most(self.longest, start + count), self.projected + projected

    def beside(self, other: PromptReads) -> PromptReads:
        """Both."""
        both = PromptReads(self.prefill)
        both.pairs, both.selected = self.pairs + other.pairs, self.selected + other.selected
        both.rows, both.tokens = self.rows + other.rows, self.tokens + other.tokens
        both.longest, both.projected = max(self.longest, other.longest), self.projected + other.projected
        return both

    def priced(self, price: Callable[[PromptReads], Figure]) -> Figure:
        """Seconds, as `PlacedReads` says them: these are of each rank already."""
        return price(self)

    @classmethod
    def stacked(cls, several: Sequence[PromptReads]) -> PromptReads:
        """Of several ranks, each figure an array over them."""
        stack = cls(several[0].prefill)
        for name in ("pairs", "selected", "rows", "tokens", "longest", "projected"):
            setattr(stack, name, np.array([getattr(reads, name) for reads in several]))
        return stack


class PlacedReads:
    """What the ranks have to attend to of the chunks of one kind: all of them, or one of them."""

    def __init__(self, prefill: Prefill, ranks: int) -> None:
        self._prefill = prefill
        self._ranks = ranks
        self._everywhere = PromptReads(prefill)
        self._alone: dict[int, PromptReads] = {}

    def on(self, rank: int | None) -> PromptReads:
        """Of that rank beside what all have; None: of all."""
        if rank is None:
            return self._everywhere
        return self._alone.setdefault(rank, PromptReads(self._prefill))

    def priced(self, price: Callable[[PromptReads], Figure]) -> Figure:
        """Seconds of all ranks alike, or [ranks]; those that read the same are priced once."""
        others = price(self._everywhere) if self._everywhere.rows else 0.0
        if not self._alone:
            return others
        seconds = np.full(self._ranks, others)
        if len(self._alone) < MANY:
            for rank, reads in self._alone.items():
                seconds[rank] = price(reads.beside(self._everywhere))
        else:
            together = [reads.beside(self._everywhere) for reads in self._alone.values()]
            seconds[list(self._alone)] = price(PromptReads.stacked(together))
        return seconds


Whole: TypeAlias = bool | tuple[bool, ...]
"""Whether with all heads; or of each kind, where figures are [kinds, ...]."""


@dataclass(frozen=True, slots=True)
class Unabsorbed:
    """What a chunk takes with keys and values that are projected up from the latents, in one layer."""

    projecting: ops.Weights
    """All latents of the prompts so far, once for the chunk."""
    prefilling: ops.Prefilling
    absorbing: Table | KindsTable
    """Seconds of all layers that it saves, by rows: the products by W_UK and W_UV, head by head."""


@dataclass(frozen=True, slots=True)
class Kernels:
    """What attends in one layer with some number of heads."""

    decoding: ops.Decoding
    prefilling: ops.Prefilling
    """Of MLA absorbed."""
    unabsorbed: Unabsorbed | None
    """The other form that MLA has."""


class AttentionCost:
    """What one rank needs to attend, with its own heads or with all of them (`whole`)."""

    def __init__(
        self,
        spec: ModelSpec,
        profile: HardwareProfile,
        ranks: int,
        precision: Precision,
        max_rows: int,
    ) -> None:
        """`max_rows`: of a step."""
        self._spec = spec
        self._profile = profile
        self._ranks = ranks
        self._precision = precision
        self._max_rows = max_rows
        self._product = ops.gemm_kernel(profile, precision.attention).entry
        self._layers = num_attention_layers(spec)
        self._indexers = num_indexers(spec)
        self._kernels: dict[Whole, Kernels] = {}

    def decode_s(self, rows: Figure, context: Figure, selected: Figure, *, whole: Whole) -> Figure:
        """`rows` decode rows that see `context` cached tokens in all, and attend to `selected` of them."""
        decoding, index = self._with(whole).decoding, self._spec.indexer
        if index is None:
            return self._layers * decoding.seconds(rows, context)
        keys = context / index.pool
        key_bytes = self._precision.index_bytes * index.pool
        scoring = chooses(selected, context) * ops.indexer_s(
            self._profile, rows, keys, index.num_heads, index.head_dim, key_bytes
        )
        return self._indexers * scoring + self._layers * decoding.seconds(rows, selected)

    def prompt_s(self, reads: PromptReads, *, whole: Whole, absorbed: Condition) -> Figure:
        """Chunks of prompts. `absorbed`: only that form can be had, since the queries came to the cache or attention
        is sparse, and the projections have what absorbing costs; else the faster form is taken, with that cost."""
        kernels = self._with(whole)
        other = kernels.unabsorbed
        if other is None:
            return self._layers * kernels.prefilling.seconds(reads.pairs, reads.tokens, reads.longest)
        seconds = self._layers * kernels.prefilling.seconds(reads.selected, reads.tokens, reads.longest)
        if absorbed is True:
            return seconds
        projecting = other.projecting.seconds(reads.tokens)
        attending = other.prefilling.seconds(reads.pairs, reads.tokens, reads.longest)
        unabsorbed = self._layers * (projecting + attending)
        return either(absorbed, seconds, least(seconds + other.absorbing[reads.projected], unabsorbed))

    def scoring_s(self, reads: PromptReads) -> Figure:
        """The indexers, of chunks: scores as one matrix product, which the selection writes and reads once."""
        index = self._spec.indexer
        if index is None:
            return 0.0
        keys = reads.pairs / most(reads.rows, 1) / index.pool
        product = ops.product_s(
            self._product, 1, reads.rows * index.num_heads, keys, index.head_dim, self._precision.attention
        )
        selection = ops.elementwise_s(self._profile, 2.0 * SCORE_BYTES * reads.pairs / index.pool)
        return self._indexers * (product + selection)

    @property
    def prefill(self) -> Prefill:
        """The kernel that computes prompts."""
        kernels = self._profile.attention
        return kernels.gqa_prefill if isinstance(self._spec.attention, GQASpec) else kernels.mla_prefill

    @property
    def keeps(self) -> float:
        """Tokens that a row attends to at most."""
        return float("inf") if self._spec.indexer is None else self._spec.indexer.top_k

    def _with(self, whole: Whole) -> Kernels:
        """Made once."""
        if whole not in self._kernels:
            self._kernels[whole] = self._made(whole)
        return self._kernels[whole]

    def _made(self, whole: Whole) -> Kernels:
        att, kv_bytes = self._spec.attention, self._precision.kv_bytes
        heads = self._heads(att.num_heads, whole)
        if isinstance(att, GQASpec):
            kv_heads = self._heads(att.num_kv_heads, whole)
            share = kv_bytes * kv_heads / att.num_kv_heads
            return Kernels(
                ops.gqa_decoding(self._profile, heads, kv_heads, att.head_dim, share),
                ops.Prefilling.of(self.prefill, heads * 2 * att.head_dim, share),
                None,
            )
        sparse = self._spec.indexer is not None
        shape = att.latent_dim, att.kv_lora_rank, kv_bytes
        return Kernels(
            ops.mla_decoding(self._profile, heads, *shape, sparse=sparse),
            ops.Prefilling.of(self.prefill, heads * (att.latent_dim + att.kv_lora_rank), kv_bytes),
            self._unabsorbed(att, whole),
        )

    def _unabsorbed(self, att: MLASpec, whole: Whole) -> Unabsorbed:
        heads, width = self._heads(att.num_heads, whole), att.nope_dim + att.rope_dim + att.v_dim
        up, dtype = heads * (att.nope_dim + att.v_dim), self._precision.attention
        return Unabsorbed(
            ops.Weights.of(self._product, 1, up, att.kv_lora_rank, dtype),
            ops.Prefilling.of(self.prefill, heads * width, 2.0 * heads * width),
            self._absorbing(att, whole)
            if isinstance(whole, bool)
            else KindsTable([self._absorbing(att, kind) for kind in whole]),
        )

    def _absorbing(self, att: MLASpec, whole: bool) -> Table:
        rows = np.arange(self._max_rows + 1, dtype=np.float64)
        heads, dtype = self._heads(att.num_heads, whole), self._precision.attention
        keys = ops.product_s(self._product, heads, rows, att.kv_lora_rank, att.nope_dim, dtype)
        values = ops.product_s(self._product, heads, rows, att.v_dim, att.kv_lora_rank, dtype)
        return Table(self._layers * (keys + values))

    def _heads(self, num_heads: int, whole: Whole) -> Figure:
        """Of so many, those that a rank attends with."""
        condition = whole if isinstance(whole, bool) else np.array(whole).reshape(-1, 1, 1)
        return either(condition, num_heads, max(1, num_heads // self._ranks))


def chooses(selected: Figure, context: Figure) -> Condition:
    """Whether some rows attend to less than they see: only those are scored (`layout.selection`). Shares of tokens
    may have been rounded."""
    return selected < context * (1 - ROUNDING)


def causal_pairs(start: Figure, count: Figure) -> Figure:
    """(row, token) pairs of rows [start, start + count), each seeing itself and all before it."""
    return count * start + count * (count + 1) / 2


def selected_pairs(start: Figure, count: Figure, keeps: float) -> Figure:
    """As `causal_pairs`, where a row attends to `keeps` tokens at most."""
    growing = least(count, most(0.0, keeps - start))
    return causal_pairs(start, growing) + (count - growing) * least(keeps, start + count)
