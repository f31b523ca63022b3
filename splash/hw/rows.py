"""Seconds that depend on the number of rows alone, of all layers together, as tables from 0 to `max_rows`.

Projections, experts and the collectives that close a layer: a step looks them up instead of computing them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from splash.hw import ops
from splash.hw.figures import Figure
from splash.hw.precision import Precision
from splash.hw.profile import HardwareProfile
from splash.spec.model import DenseSpec, KDASpec, MLASpec, ModelSpec, MoESpec

Seconds: TypeAlias = Figure
"""An array with one value for each number of rows."""

ROW_PASSES = 6
"""Times that the elementwise parts of a layer (norms, residuals, activations) read or write its rows."""


class Table:
    """Seconds by rows, to look up at a number of them or at an array of numbers."""

    def __init__(self, seconds: Seconds) -> None:
        self.seconds = np.asarray(seconds)
        self._numbers: list[float] = self.seconds.tolist()

    def __getitem__(self, rows: Figure) -> Figure:
        if isinstance(rows, np.ndarray):
            found: npt.NDArray[Any] = self.seconds.take(rows)
            return found
        return self._numbers[rows]  # type: ignore[call-overload,no-any-return]  # a number of rows is an int


class KindsTable:
    """A table of each of several kinds, to look up at numbers of rows by kind: [kinds, ..., ...]."""

    def __init__(self, tables: Sequence[Table]) -> None:
        self._seconds = np.stack([table.seconds for table in tables])
        self._kinds = np.arange(len(tables)).reshape(-1, 1, 1)

    def __getitem__(self, rows: Figure) -> Figure:
        found: npt.NDArray[Any] = self._seconds[self._kinds, np.asarray(rows)]
        return found


@dataclass(frozen=True, slots=True)
class HeadTables:
    """The attention weights that change place, for one number of heads: by rows, all layers."""

    q: Table
    uk: Table
    uv: Table
    o: Table


@dataclass(frozen=True, slots=True)
class RowTables:
    """By rows of a step. Made by `row_tables`."""

    shard: HeadTables
    """One rank's head shard."""
    whole: HeadTables
    """All heads."""
    replicated: Table
    """What every rank computes of every row: latent projections, the indexer's, KDA, norms."""
    ffn: Table
    """Router, routed and shared experts, dense MLPs: on one rank, for the rows of the whole step."""
    closing: Table
    """Two all-reduces a layer."""
    scattered_closing: Table
    """Rows scattered: an all-gather and a reduce-scatter around each FFN."""
    head: Table
    """The vocabulary shard, by sampled rows."""


def row_tables(
    spec: ModelSpec,
    profile: HardwareProfile,
    ranks: int,
    precision: Precision,
    max_rows: int,
    *,
    balanced: bool = True,
    divided: bool = False,
) -> RowTables:
    """The tables of one rank among `ranks`. `divided`: each computes its part of the latents, if they have equal ones,
    and all gather them (ADR 0011). `balanced`: experts are placed, or copied, so that all ranks have as much to do for
    every step; else the rows of a step choose more of one rank's, and all wait for that one."""
    rows = np.arange(max_rows + 1, dtype=np.float64)
    heads = spec.attention.num_heads
    hidden_bytes = spec.hidden_size * precision.activation_bytes * rows
    gather = spec.num_layers * _collective(profile, "all_gather", ranks, hidden_bytes)
    scatter = spec.num_layers * _collective(profile, "reduce_scatter", ranks, hidden_bytes)
    vocabulary = -(-spec.vocab_size // ranks)
    return RowTables(
        shard=_head_tables(spec, profile, precision, rows, heads // ranks, ranks),
        whole=_head_tables(spec, profile, precision, rows, heads, 1),
        replicated=Table(_replicated(spec, profile, ranks, precision, rows, divided=divided)),
        ffn=Table(_ffns(spec, profile, ranks, precision, rows, balanced=balanced)),
        closing=Table(2 * spec.num_layers * _collective(profile, "all_reduce", ranks, hidden_bytes)),
        scattered_closing=Table(gather + scatter),
        head=Table(ops.gemm_s(profile, rows, vocabulary, spec.hidden_size, precision.dense)),
    )


def num_attention_layers(spec: ModelSpec) -> int:
    return sum(not spec.is_kda(layer) for layer in range(spec.num_layers))


def num_indexers(spec: ModelSpec) -> int:
    return sum(spec.indexed)


def _head_tables(
    spec: ModelSpec,
    profile: HardwareProfile,
    precision: Precision,
    rows: Seconds,
    heads: int,
    kv_shares: int,
) -> HeadTables:
    att, hidden, layers = spec.attention, spec.hidden_size, num_attention_layers(spec)

    def gemm(n: int, k: int) -> Table:
        return Table(layers * ops.gemm_s(profile, rows, n, k, precision.attention))

    def by_head(n: int, k: int) -> Table:
        return Table(layers * ops.batched_gemm_s(profile, heads, rows, n, k, precision.attention))

    if isinstance(att, MLASpec):
        q_in = hidden if att.q_lora_rank is None else att.q_lora_rank
        return HeadTables(
            q=gemm(heads * (att.nope_dim + att.rope_dim), q_in),
            uk=by_head(att.kv_lora_rank, att.nope_dim),
            uv=by_head(att.v_dim, att.kv_lora_rank),
            o=gemm(hidden, heads * att.v_dim),
        )
    kv_heads = max(1, att.num_kv_heads // kv_shares)
    none = Table(np.zeros_like(rows))
    return HeadTables(
        gemm((heads + 2 * kv_heads) * att.head_dim, hidden), none, none, gemm(hidden, heads * att.head_dim)
    )


def _replicated(
    spec: ModelSpec,
    profile: HardwareProfile,
    ranks: int,
    precision: Precision,
    rows: Seconds,
    *,
    divided: bool,
) -> Seconds:
    att, index, hidden = spec.attention, spec.indexer, spec.hidden_size

    def gemm(n: int, k: int, dtype: str) -> Seconds:
        return ops.gemm_s(profile, rows, n, k, dtype)

    streams = 1 if spec.hyper is None else spec.hyper.streams
    row_bytes = streams * hidden * precision.activation_bytes
    seconds = spec.num_layers * ops.elementwise_s(profile, ROW_PASSES * row_bytes * rows)
    if isinstance(att, MLASpec):
        part = att.down_part(ranks) if divided else 0
        down = gemm(part or att.down_dim, hidden, precision.attention)
        if part:
            down += _collective(
                profile, "all_gather", ranks, att.down_dim * precision.activation_bytes * rows
            )
        seconds += num_attention_layers(spec) * down
    if index is not None and isinstance(att, MLASpec):
        query = gemm(index.num_heads * index.head_dim, att.q_lora_rank or hidden, precision.attention)
        key = gemm(index.head_dim + index.num_heads, hidden, precision.attention)
        seconds += num_indexers(spec) * (query + key)
    if spec.kda is not None:
        layers = spec.num_layers - num_attention_layers(spec)
        seconds += layers * _kda(spec.kda, hidden, profile, ranks, precision, rows)
    return seconds


def _kda(
    kda: KDASpec, hidden: int, profile: HardwareProfile, ranks: int, precision: Precision, rows: Seconds
) -> Seconds:
    """Projections of one KDA layer, of the rank's heads: q, k, v, one beta a head and the narrow halves of decay and
    gate in one product; then their wide halves, and the output."""
    heads = kda.num_heads // ranks
    width = heads * kda.head_dim
    wide = (width, kda.head_dim)
    shapes = ((3 * width + heads + 2 * kda.head_dim, hidden), wide, wide, (hidden, width))
    return sum(ops.gemm_s(profile, rows, n, k, precision.kda) for n, k in shapes)


def _ffns(
    spec: ModelSpec,
    profile: HardwareProfile,
    ranks: int,
    precision: Precision,
    rows: Seconds,
    *,
    balanced: bool,
) -> Seconds:
    seconds = np.zeros_like(rows)
    for ffn, count in Counter(spec.ffns).items():
        one = (
            _moe(ffn, spec.hidden_size, profile, ranks, precision, rows, balanced=balanced)
            if isinstance(ffn, MoESpec)
            else _mlp(ffn, spec.hidden_size, profile, ranks, precision, rows)
        )
        seconds += count * one
    return seconds


def _mlp(
    ffn: DenseSpec, hidden: int, profile: HardwareProfile, ranks: int, precision: Precision, rows: Seconds
) -> Seconds:
    width = -(-ffn.ffn // ranks)
    up = ops.gemm_s(profile, rows, 2 * width, hidden, precision.experts)
    return up + ops.gemm_s(profile, rows, hidden, width, precision.experts)


def _moe(
    moe: MoESpec,
    hidden: int,
    profile: HardwareProfile,
    ranks: int,
    precision: Precision,
    rows: Seconds,
    *,
    balanced: bool,
) -> Seconds:
    """Experts lie whole on ranks (EP), each as likely to be chosen; a rank reads those that a row of the step chose.
    The router computes in fp32, whatever the weights' type (`model.layers.moe`)."""
    held = moe.num_experts / ranks
    pairs, hit = rows * moe.top_k / ranks, held * hit_share(moe, rows)
    if not balanced:
        pairs, hit = busiest_rank(moe, ranks, rows)
    seconds = ops.gemm_s(profile, rows, moe.num_experts, hidden, "float32")
    seconds += ops.grouped_gemm_s(
        profile,
        pairs,
        hit,
        hidden,
        moe.expert_ffn,
        1,
        precision.experts,
        experts_held=held,
        tokens=rows,
    )
    if moe.num_shared:
        shared = DenseSpec(moe.num_shared * moe.expert_ffn)
        seconds += _mlp(shared, hidden, profile, ranks, precision, rows)
    return seconds


def hit_share(moe: MoESpec, rows: Seconds) -> Seconds:
    """Of the experts those that at least one of `rows` chose."""
    return 1 - (1 - moe.top_k / moe.num_experts) ** rows


def busiest_rank(moe: MoESpec, ranks: int, rows: Seconds) -> tuple[Seconds, Seconds]:
    """Expected (row, expert) pairs and experts hit on the rank that has most of them; every row chooses at random.

    Both are about normal, and so `expected_maximum` deviations above their mean. The deviation is that from the mean of
    the ranks, which is smaller by what they have in common: for counts X of the ranks, sqrt(var X_1 - cov(X_1, X_2)).
    """
    experts, top_k, held = moe.num_experts, moe.top_k, moe.num_experts / ranks
    above = expected_maximum(ranks)
    hit = hit_share(moe, rows)
    neither = ((experts - top_k) * (experts - top_k - 1) / (experts * (experts - 1))) ** rows
    common = neither - (1 - hit) ** 2
    hits = held * hit + above * np.sqrt(held * np.maximum(0.0, hit * (1 - hit) - common))
    one_row = top_k / ranks * (experts - top_k) / (experts - 1)
    pairs = rows * top_k / ranks + above * np.sqrt(rows * one_row)
    return np.minimum(pairs, rows * min(top_k, held)), np.minimum(hits, np.minimum(held, rows * top_k))


def expected_maximum(count: int) -> float:
    """Of `count` independent standard normal numbers."""
    at = np.linspace(-8.0, 8.0, 4001)
    density = np.exp(-(at**2) / 2) / np.sqrt(2 * np.pi)
    below = np.cumsum(density) * (at[1] - at[0])
    return float(np.sum(at * count * density * below ** (count - 1)) * (at[1] - at[0]))


def _collective(profile: HardwareProfile, op: str, ranks: int, num_bytes: Seconds) -> Seconds:
    """One exchange of the rows' hidden states, `num_bytes` of all rows; a rank receives f of them (all-reduce: 2 f)."""
    share = (1 - 1 / ranks) * (2 if op == "all_reduce" else 1)
    return ops.collective_s(profile, op, ranks, share * num_bytes)
