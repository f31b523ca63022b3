"""Shipped profiles against figures that their sources print (not the tables that numbers were fitted to).

A wrong unit, dtype size or bus factor is a factor of two or more, so wide tolerances catch it.
"""

import pytest

from splash.hw import ops
from splash.hw.load import load_profile

KIB, MIB = 1 << 10, 1 << 20


@pytest.mark.parametrize(
    ("profile", "ranks", "num_bytes", "microseconds"),
    [
        ("h200", 8, 64 * KIB, 5.0),
        ("h200", 8, 16 * MIB, 122),
        ("b200", 8, 64 * KIB, 6.2),
        ("bw1000", 8, 64 * KIB, 53),
        ("bw1000", 8, MIB, 73),
        ("bw1000", 8, 16 * MIB, 297),
        ("bw1000", 16, 64 * KIB, 71),
        ("bw1000", 16, 16 * MIB, 517),
    ],
)
def test_all_reduce_takes_as_long_as_reported(
    profile: str, ranks: int, num_bytes: int, microseconds: float
) -> None:
    """Red when a ring's factor or a unit of alpha or beta is wrong."""
    received = 2 * (1 - 1 / ranks) * num_bytes
    seconds = ops.collective_s(load_profile(profile), "all_reduce", ranks, received)
    assert seconds * 1e6 == pytest.approx(microseconds, rel=0.3)


@pytest.mark.parametrize(
    ("profile", "dtype", "teraflops"),
    [
        ("h200", "bfloat16", 842),
        ("h200", "fp8_block", 1385),
        ("b200", "bfloat16", 1695),
        ("b200", "fp8_block", 2918),
        ("h100", "bfloat16", 795),
        ("mi300x", "bfloat16", 668),
        ("mi300x", "fp8_block", 840),
        ("bw1100", "bfloat16", 308),
        ("bw1100", "fp8_block", 284),
    ],
)
def test_large_products_are_as_fast_as_reported(profile: str, dtype: str, teraflops: float) -> None:
    """Red when a profile's FLOP/s count a multiply-add once, or belong to another dtype."""
    seconds = ops.gemm_s(load_profile(profile), 8192, 8192, 8192, dtype)
    assert 2 * 8192**3 / seconds / 1e12 == pytest.approx(teraflops, rel=0.25)


@pytest.mark.parametrize(("batch", "microseconds"), [(1, 18), (64, 91), (256, 293)])
def test_decode_attention_of_one_rank_takes_as_long_as_reported(batch: int, microseconds: float) -> None:
    """Red when the latent cache's bytes or the heads of a rank are counted wrongly: 16 heads, contexts of 4 K."""
    seconds = ops.mla_decode_s(load_profile("h200"), batch, batch * 4096, 16, 576, 512, 1152)
    assert seconds * 1e6 == pytest.approx(microseconds, rel=0.2)


@pytest.mark.parametrize(
    ("profile", "low", "high"), [("h200", 4.42, 4.8), ("b200", 5.8, 6.9), ("h100", 3.06, 3.3)]
)
def test_decode_attention_reaches_the_reported_bandwidth(profile: str, low: float, high: float) -> None:
    """Red when bandwidth is in bits, or the fixed part swallows long contexts."""
    tokens = 512 * 32768
    seconds = ops.mla_decode_s(load_profile(profile), 512, tokens, 16, 576, 512, 1152)
    assert low * 0.95 <= tokens * 1152 / seconds / 1e12 <= high


@pytest.mark.parametrize(
    ("profile", "dtype", "shard", "tokens", "microseconds"),
    [
        ("bw1000", "int8", 256, 256, 1404),
        ("bw1000", "int8", 128, 16384, 7020),
        ("bw1100", "fp8_block", 256, 1, 78),
    ],
)
def test_experts_take_as_long_as_reported(
    profile: str, dtype: str, shard: int, tokens: int, microseconds: float
) -> None:
    """Red when an expert's three matrices, a shard's width or the chosen experts are counted wrongly."""
    hit = 256 * (1 - (1 - 8 / 256) ** tokens)
    seconds = ops.grouped_gemm_s(load_profile(profile), 8 * tokens, hit, 7168, 2048, 2048 // shard, dtype)
    assert seconds * 1e6 == pytest.approx(microseconds, rel=0.2)


def test_sparse_attention_grows_little_with_context() -> None:
    """Red when selection is lost: a block of one row grew from 136 to 171 µs between 2 K and 64 K (H200)."""
    p = load_profile("h200")

    def block(length: int) -> float:
        return float(
            ops.indexer_s(p, 1, length, 64, 128, 132)
            + ops.sparse_mla_decode_s(p, 1, min(length, 2048), 128, 576, 512, 656)
        )

    growth = (block(65536) - block(2048)) * 1e6
    assert growth == pytest.approx(35, rel=0.3)
