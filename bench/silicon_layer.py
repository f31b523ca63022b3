"""One layer of DeepSeek-V3 on 8 devices, summed from tables of measured operations and from `splash.hw.ops`.

Attention is divided by head, experts are not divided: six products, absorption, attention, routed experts and two
all-reduces. Where a table has no such shape, its nearest one stands for it on both sides. Half of the tables' rows were
fitted, so this is a check of how errors of operations add up, not one of unseen rows.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.silicon import MICRO, RECEIVED, Table, read
from splash.hw import ops
from splash.hw.profile import HardwareProfile

RANKS, HEADS, HIDDEN = 8, 16, 7168
EXPERTS_HELD, TOP_K, FFN = 32, 8, 2048
FP8, BF16 = "fp8_block", "bfloat16"

PRODUCTS = (
    (FP8, 2048, 7168),  # q_a and kv_a, 2,112 columns
    (FP8, 3072, 1536),  # q_b
    (FP8, 7168, 2048),  # o
    (FP8, 512, 7168),  # the shared expert's gate and up
    (FP8, 7168, 512),  # and down, of 256
    (BF16, 256, 7168),  # router
)
"""Dtype, columns and inner dimension on one rank."""
PROJECTED_UP = (FP8, 4096, 512)
"""Keys and values of a prompt's tokens, from their latents."""

BATCHES = tuple(2**n for n in range(9))
CONTEXTS = tuple(2**n for n in range(10, 17))
PROMPTS = (256, 512, 768, 1024, 1536, 2048, 3072, 4096, 8192, 16384)


@dataclass(frozen=True, slots=True)
class LayerTables:
    """Seconds of single operations on one device, found by their shapes."""

    gemm: Table
    absorption: Table
    attention: Table
    experts: Table
    all_reduce: Table

    @classmethod
    def of(cls, folder: Path, tables: Mapping[str, str]) -> "LayerTables":
        framework = {"framework": "TRTLLM"}
        return cls(
            gemm=read(folder / tables["gemm"], {}),
            absorption=read(folder / tables["absorption"], {**framework, "bmm_dtype": BF16}),
            attention=read(folder / tables["attention"], {**framework, "kv_cache_dtype": BF16}),
            experts=read(folder / tables["experts"], {"moe_dtype": FP8, "distribution": "balanced"}),
            all_reduce=read(folder / tables["all_reduce"], {**framework, "num_gpus": str(RANKS)}),
        )

    def products_s(self, rows: int, *more: tuple[str, int, int]) -> float:
        return sum(
            _found(self.gemm, gemm_dtype=dtype, m=rows, n=n, k=k) for dtype, n, k in (*PRODUCTS, *more)
        )

    def closing_s(self, rows: int) -> float:
        """Two all-reduces, between the table's sizes."""
        size = np.log(rows * HIDDEN * 2)
        seconds = np.interp(size, np.log(self.all_reduce["bytes"]), np.log(self.all_reduce["us"] * MICRO))
        return 2 * float(np.exp(seconds))

    def experts_s(self, rows: int) -> float:
        return _found(
            self.experts,
            num_tokens=rows,
            moe_tp_size=1,
            moe_ep_size=RANKS,
            num_experts=256,
            hidden_size=HIDDEN,
        )

    def decode_s(self, batch: int, context: int) -> float:
        return (
            self.products_s(batch)
            + _found(self.absorption, op_name="mla_gen_pre", num_tokens=batch, num_heads=HEADS)
            + _found(self.absorption, op_name="mla_gen_post", num_tokens=batch, num_heads=HEADS)
            + _found(self.attention, phase="generation", num_heads=HEADS, batch_size=batch, step=context - 1)
            + self.experts_s(batch)
            + self.closing_s(batch)
        )

    def prefill_s(self, tokens: int) -> float:
        return (
            self.products_s(tokens, PROJECTED_UP)
            + _found(self.attention, phase="context", num_heads=HEADS, batch_size=1, isl=tokens, step=0)
            + self.experts_s(tokens)
            + self.closing_s(tokens)
        )


def _found(table: Table, **keys: object) -> float:
    """Seconds of the row with these values; not a number where there is none."""
    rows = np.all([table[name] == value for name, value in keys.items()], axis=0)
    return float(np.median(table["us"][rows])) * MICRO if rows.any() else float("nan")


def decode_s(p: HardwareProfile, batch: int, context: int) -> float:
    """As `LayerTables.decode_s`, of the profile."""
    return float(
        _products_s(p, batch)
        + ops.batched_gemm_s(p, HEADS, batch, 512, 128, BF16)
        + ops.batched_gemm_s(p, HEADS, batch, 128, 512, BF16)
        + ops.mla_decode_s(p, batch, batch * context, HEADS, 576, 512, 1152.0)
        + _experts_s(p, batch)
        + _closing_s(p, batch)
    )


def prefill_s(p: HardwareProfile, tokens: int) -> float:
    """As `LayerTables.prefill_s`, of the profile."""
    pairs = ops.prefill_pairs(p.attention.mla_prefill, tokens, 0)
    attention = ops.mla_prefill_s(p, pairs, tokens, HEADS, 192, 128, 640.0 * HEADS, longest=tokens)
    return float(
        _products_s(p, tokens, PROJECTED_UP) + attention + _experts_s(p, tokens) + _closing_s(p, tokens)
    )


def _products_s(p: HardwareProfile, rows: int, *more: tuple[str, int, int]) -> float:
    return sum(float(ops.gemm_s(p, rows, n, k, dtype)) for dtype, n, k in (*PRODUCTS, *more))


def _experts_s(p: HardwareProfile, tokens: int) -> float:
    rows = tokens * TOP_K / RANKS
    hit = min(float(EXPERTS_HELD), max(1.0, rows))
    return float(
        ops.grouped_gemm_s(p, rows, hit, HIDDEN, FFN, 1, FP8, experts_held=EXPERTS_HELD, tokens=tokens)
    )


def _closing_s(p: HardwareProfile, rows: int) -> float:
    received = rows * HIDDEN * 2 * RECEIVED["all_reduce"](RANKS)
    return 2 * float(ops.collective_s(p, "all_reduce", RANKS, received))


def decode_errors(p: HardwareProfile, tables: LayerTables) -> Iterator[float]:
    """Relative, without sign, of every batch and context that all tables have."""
    for batch in BATCHES:
        for context in CONTEXTS:
            error = abs(decode_s(p, batch, context) / tables.decode_s(batch, context) - 1)
            if np.isfinite(error):
                yield error


def prefill_errors(p: HardwareProfile, tables: LayerTables) -> Iterator[float]:
    for tokens in PROMPTS:
        error = abs(prefill_s(p, tokens) / tables.prefill_s(tokens) - 1)
        if np.isfinite(error):
            yield error
