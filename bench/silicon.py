"""Times of single operations that others measured on their devices, beside what `splash.hw.ops` says of the same.

The tables are not part of the repository (their README says where they come from); a folder of them is given by option.
"""

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from splash.hw import ops
from splash.hw.profile import HardwareProfile

Column = npt.NDArray[Any]
Table = dict[str, Column]
MICRO = 1e-6

EVERY: Mapping[str, str] = {}
SEED = 7
"""Of the halves: one is fitted, the other one judges."""
FEW = 64
"""Below as many rows, every second one is held out, in the order of their sizes: both halves have all of them."""


@dataclass(frozen=True)
class Measured:
    """Rows of one table with the cost of the same counts."""

    name: str
    table: str
    seconds: Column
    cost: Callable[[HardwareProfile], Column]
    counted: Column
    """Which rows a gate counts."""
    weight: Column
    """Of a row in a fit."""
    order: Column
    """Of the rows, by size."""
    held_out: Column = field(init=False)

    def __post_init__(self) -> None:
        every_second = self.order.argsort() % 2 == 1
        random = np.random.default_rng(SEED).permutation(len(self.seconds)) % 2 == 1
        held_out = every_second if len(self.seconds) < FEW else random
        object.__setattr__(self, "held_out", held_out)

    def errors(self, profile: HardwareProfile, rows: Column) -> Column:
        """Relative, without sign."""
        return np.abs(self.cost(profile)[rows] / self.seconds[rows] - 1)


def measured(
    name: str,
    table: str,
    seconds: Column,
    cost: Callable[[HardwareProfile], Column],
    *,
    counted: Column | None = None,
    weight: Column | None = None,
    order: Column | None = None,
) -> Measured:
    """With all rows counted, and alike, and in order, where nothing else is said."""
    ones = np.ones(len(seconds))
    return Measured(
        name,
        table,
        seconds,
        cost,
        ones > 0 if counted is None else counted,
        ones if weight is None else weight,
        np.arange(len(seconds)) if order is None else order,
    )


def read(file: Path, where: Mapping[str, str]) -> Table:
    """The rows in which columns have the given texts; columns of numbers as such."""
    with file.open(newline="", encoding="utf-8") as lines:
        rows = [
            row for row in csv.DictReader(lines) if all(row[key] == value for key, value in where.items())
        ]
    if not rows:
        raise ValueError(f"{file} has no row with {where}")
    return {name: _column([row[name] for row in rows]) for name in rows[0]}


def _column(texts: list[str]) -> Column:
    try:
        return np.array([float(text) for text in texts])
    except ValueError:
        return np.array(texts)


def octaves(counts: Column) -> Column:
    """Weights with which each doubling of a count weighs the same, however many rows it has."""
    octave = np.floor(np.log2(counts))
    return np.array([1 / np.sum(octave == own) for own in octave]) * len(counts) / len(set(octave))


def gemm(folder: Path, table: str, dtype: str, where: Mapping[str, str] = EVERY) -> Measured:
    """Matrix products; `dtype` is the profile's name for what the table may call otherwise."""
    t = read(folder / table, where)
    seconds = t.get("us", t.get("measured_us")) * MICRO
    return measured(
        f"gemm {dtype}",
        table,
        seconds,
        lambda p: ops.gemm_s(p, t["m"], t["n"], t["k"], dtype),
        weight=octaves(t["m"]),
        order=np.lexsort((t["m"], t["k"], t["n"])),
    )


def absorption(folder: Path, table: str, dtype: str, where: Mapping[str, str] = EVERY) -> Measured:
    """The products by W_UK and W_UV, head by head, of 128 by 512."""
    t = read(folder / table, where)
    before = t["op_name"] == "mla_gen_pre"
    n, k = np.where(before, 512, 128), np.where(before, 128, 512)
    return measured(
        f"bmm {dtype}",
        table,
        t["us"] * MICRO,
        lambda p: ops.batched_gemm_s(p, t["num_heads"], t["num_tokens"], n, k, dtype),
    )


def mla_decode(folder: Path, table: str, framework: str, cache: str) -> Measured:
    """Absorbed decode attention over 512 + 64; counted from 64 K tokens on, below which caches and launches decide."""
    t = read(folder / table, {"framework": framework, "kv_cache_dtype": cache, "phase": "generation"})
    tokens = t["batch_size"] * (t["step"] + 1)
    token_bytes = 576.0 * (2 if cache == "bfloat16" else 1)
    return measured(
        f"mla decode {cache}",
        table,
        t["us"] * MICRO,
        lambda p: ops.mla_decode_s(p, t["batch_size"], tokens, t["num_heads"], 576, 512, token_bytes),
        counted=tokens >= 65536,
    )


def mla_prefill(folder: Path, table: str, framework: str, cache: str) -> Measured:
    """Un-absorbed prompt attention over 192 and 128, causal, after a prefix of `step` tokens."""
    t = read(folder / table, {"framework": framework, "kv_cache_dtype": cache, "phase": "context"})
    batch, heads, longest = t["batch_size"], t["num_heads"], t["step"] + t["isl"]

    def cost(p: HardwareProfile) -> Column:
        pairs = batch * ops.prefill_pairs(p.attention.mla_prefill, t["isl"], t["step"])
        keys_and_values = 2.0 * (192 + 128) * heads
        return ops.mla_prefill_s(p, pairs, batch * longest, heads, 192, 128, keys_and_values, longest=longest)

    return measured(f"mla prefill {cache}", table, t["us"] * MICRO, cost)


def dsa_decode(folder: Path, table: str, where: Mapping[str, str] = EVERY) -> Measured:
    """A whole sparse attention block of DeepSeek-V3.2 in decode: projections, indexer, selection, attention.

    Up to 512 rows: with 1,024 the times jump by 0.5 to 1.2 ms, whatever the context, as if a graph had no such size.
    """
    t = read(folder / table, {"op_name": "dsa_generation_module", **where})
    counted = t["batch_size"] <= 512
    return measured(
        "dsa decode block",
        table,
        t["us"] * MICRO,
        lambda p: dsa_block_s(p, t["batch_size"], t["step"] + 1, t["num_heads"]),
        counted=counted,
        weight=1.0 * counted,
    )


def dsa_block_s(p: HardwareProfile, rows: Column, length: Column, heads: Column) -> Column:
    """Of DeepSeek-V3.2's dims, an fp8 cache (656 bytes a token, index keys 132) and `heads` of 128 heads here."""
    fp8 = "fp8_block"
    projections = (
        ops.gemm_s(p, rows, 1536 + 576, 7168, fp8)
        + ops.gemm_s(p, rows, heads * 192, 1536, fp8)
        + ops.batched_gemm_s(p, heads, rows, 512, 128, "bfloat16")
        + ops.batched_gemm_s(p, heads, rows, 128, 512, "bfloat16")
        + ops.gemm_s(p, rows, 7168, heads * 128, fp8)
    )
    index = (
        ops.gemm_s(p, rows, 64 * 128, 1536, fp8)
        + ops.gemm_s(p, rows, 128 + 64, 7168, "bfloat16")
        + ops.indexer_s(p, rows, rows * length, 64, 128, 132.0)
    )
    selected = rows * np.minimum(length, 2048)
    return projections + index + ops.sparse_mla_decode_s(p, rows, selected, heads, 576, 512, 656.0)


def experts(folder: Path, table: str, dtype: str, where: Mapping[str, str] = EVERY) -> Measured:
    """Routed experts on one rank, every expert hit as often as the others."""
    t = read(folder / table, where)
    held = t["num_experts"] / t["moe_ep_size"]
    rows = t["num_tokens"] * t["topk"] / t["moe_ep_size"]
    return measured(
        f"experts {dtype}",
        table,
        t["us"] * MICRO,
        lambda p: _by_shape(p, t, rows, np.minimum(held, np.maximum(rows, 1)), held, dtype),
        weight=octaves(t["num_tokens"]),
    )


def tuned_experts(folder: Path, table: str, dtype: str, where: Mapping[str, str] = EVERY) -> Measured:
    """As `experts`, from tables of tuned kernels: experts at random, tokens that all stay, shards by columns."""
    t = read(folder / table, where)
    renamed = {"num_tokens": t.get("tokens", t.get("token")), "hidden_size": t["model_dim"]}
    held = t.get("experts", t.get("expert"))
    t = t | renamed | {"inter_size": t["inter_dim"], "moe_tp_size": np.ones(len(held))}
    hit = held * (1 - (1 - t["topk"] / held) ** t["num_tokens"])
    return measured(
        f"experts {dtype}",
        table,
        t["us"] * MICRO,
        lambda p: _by_shape(p, t, t["num_tokens"] * t["topk"], hit, held, dtype),
    )


def _by_shape(p: HardwareProfile, t: Table, rows: Column, hit: Column, held: Column, dtype: str) -> Column:
    """Shapes of a model are numbers to `ops`, so the rows of one shape go together."""
    shapes = np.stack([t["hidden_size"], t["inter_size"], t["moe_tp_size"]], axis=1)
    seconds = np.empty(len(rows))
    for shape in np.unique(shapes, axis=0):
        own = np.all(shapes == shape, axis=1)
        hidden, ffn, width = (int(dim) for dim in shape)
        seconds[own] = ops.grouped_gemm_s(
            p,
            rows[own],
            hit[own],
            hidden,
            ffn,
            width,
            dtype,
            experts_held=held[own],
            tokens=t["num_tokens"][own],
        )
    return seconds


RECEIVED: dict[str, Callable[[float], float]] = {
    "all_reduce": lambda ranks: 2 * (1 - 1 / ranks),
    "all_gather": lambda ranks: 1 - 1 / ranks,
    "reduce_scatter": lambda ranks: 1 - 1 / ranks,
    "all_to_all": lambda ranks: 1 - 1 / ranks,
}
"""Bytes that a rank receives, for each byte of the size that tables are made by."""


def collective(folder: Path, table: str, op: str, ranks: int, where: Mapping[str, str] = EVERY) -> Measured:
    """One collective at one group size."""
    t = read(folder / table, where)
    received = t["bytes"] * RECEIVED[op](ranks)
    return measured(
        f"{op} {ranks}",
        table,
        t.get("us", t.get("latency_us")) * MICRO,
        lambda p: ops.collective_s(p, op, ranks, received),
    )
