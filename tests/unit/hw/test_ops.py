"""Costs of operations: their limits, their zeros, and their rules for what a profile lacks."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from splash.hw import ops
from splash.hw.load import known_profiles, load_profile
from splash.hw.profile import HardwareProfile, ProfileError, Quantity

PROFILES = sorted(known_profiles())

LINEAR_IN_ROWS: dict[str, Callable[[HardwareProfile, Any], Any]] = {
    "gemm": lambda p, n: ops.gemm_s(p, n, 4096, 4096, "bfloat16"),
    "experts": lambda p, n: ops.grouped_gemm_s(p, n, np.minimum(n, 32), 7168, 2048, 1, "bfloat16"),
    "mla_decode": lambda p, n: ops.mla_decode_s(p, n, 4096 * n, 128, 576, 512, 1152),
    "sparse_mla_decode": lambda p, n: ops.sparse_mla_decode_s(p, n, 2048 * n, 128, 576, 512, 656),
    "indexer": lambda p, n: ops.indexer_s(p, n, 32768 * n, 64, 128, 132),
    "mla_prefill": lambda p, n: ops.mla_prefill_s(p, n * 2048, n, 128, 192, 128, 1152),
    "gqa_decode": lambda p, n: ops.gqa_decode_s(p, n, 4096 * n, 64, 8, 128, 4096),
    "gqa_prefill": lambda p, n: ops.gqa_prefill_s(p, n * 2048, n, 64, 128, 4096),
    "recurrent": lambda p, n: ops.recurrent_s(p, n, 64, 128, 4 * 64 * 128 * 128),
    "elementwise": lambda p, n: ops.elementwise_s(p, n * 16384),
    "all_reduce": lambda p, n: ops.collective_s(p, "all_reduce", 8, n * 16384),
    "copy": lambda p, n: ops.copy_s(p, n * 16384),
}


@pytest.mark.parametrize("name", LINEAR_IN_ROWS)
@pytest.mark.parametrize("profile", PROFILES)
def test_nothing_costs_nothing_and_more_costs_more(profile: str, name: str) -> None:
    """Red when a fixed time is charged for no work, or a cost falls as work grows."""
    seconds = LINEAR_IN_ROWS[name](load_profile(profile), np.array([0, 1, 128, 4096, 65536]))
    assert seconds[0] == 0
    assert np.all(np.diff(seconds) > 0), seconds


@pytest.mark.parametrize("name", LINEAR_IN_ROWS)
def test_an_array_costs_what_its_numbers_cost(name: str) -> None:
    """Red when an operation treats arrays otherwise than numbers."""
    p, rows = load_profile("h200"), [1, 7, 300]
    singly = [float(LINEAR_IN_ROWS[name](p, count)) for count in rows]
    assert LINEAR_IN_ROWS[name](p, np.array(rows)) == pytest.approx(singly)


@pytest.mark.parametrize("profile", PROFILES)
def test_large_products_reach_the_flops_and_skinny_ones_the_bandwidth(profile: str) -> None:
    """Red when a unit, a factor of two or the bytes of a dtype are wrong."""
    p = load_profile(profile)
    size = 16384
    large = 2 * size**3 / ops.gemm_s(p, size, size, size, "bfloat16")
    skinny = 2 * size**2 / ops.gemm_s(p, 1, size, size, "bfloat16")
    assert large == pytest.approx(p.gemm.bfloat16.flops.value, rel=0.15)
    assert skinny == pytest.approx(p.gemm.bfloat16.bandwidth.value, rel=0.25)


@pytest.mark.parametrize("profile", PROFILES)
def test_long_contexts_reach_the_bandwidth(profile: str) -> None:
    """Red when the cache's bytes are not what decode attention of a few heads costs."""
    p = load_profile(profile)
    decode = replace(p.attention.mla_decode, heads_multiple=None)
    p = replace(p, attention=replace(p.attention, mla_decode=decode))
    tokens, token_bytes = 1 << 30, 1 << 16
    seconds = ops.mla_decode_s(p, 4096, tokens, 1, 576, 512, token_bytes)
    gathered = decode.gather_bandwidth
    reached = 1 / (1 / decode.bandwidth.value + (0.0 if gathered is None else 1 / gathered.value))
    assert tokens * token_bytes / seconds == pytest.approx(reached, rel=0.05)


def test_padded_heads_cost_as_much_as_whole_ones() -> None:
    """Red when padding is dropped, or applied to traffic."""
    p = load_profile("h200")
    decode = replace(p.attention.mla_decode, heads_multiple=_quantity(64), by_heads=None, per_head=None)
    p = replace(p, attention=replace(p.attention, mla_decode=decode))
    few, full, more, most = (ops.mla_decode_s(p, 64, 1 << 22, h, 576, 512, 1024) for h in (1, 64, 65, 128))
    assert few == pytest.approx(full, rel=0.02)
    assert more == pytest.approx(most, rel=0.02)
    assert most > 1.3 * full


def test_a_call_gets_the_narrowest_kernel_that_takes_its_heads() -> None:
    """Red when the kernel for many heads is charged for few, or one too narrow for its heads."""
    p = load_profile("b200")
    kernels = {32: _quantity(1e14), 64: _quantity(4e14)}
    decode = replace(
        p.attention.mla_decode, flops=_quantity(1.6e15), by_heads=kernels, bandwidth=_quantity(1e16)
    )
    p = replace(p, attention=replace(p.attention, mla_decode=decode))
    heads, tokens = np.array([16, 32, 33, 64, 65, 128]), 1 << 30
    found = 2 * tokens * heads * (576 + 512) / ops.mla_decode_s(p, 1 << 12, tokens, heads, 576, 512, 1152)
    assert found == pytest.approx([1e14, 1e14, 4e14, 4e14, 1.6e15, 1.6e15], rel=0.05)


def test_each_head_of_each_row_takes_its_time() -> None:
    """Red when heads are free, or charged once for all rows or once for all heads."""
    p = load_profile("b200")
    decode = replace(p.attention.mla_decode, per_head=None)
    free = replace(p, attention=replace(p.attention, mla_decode=decode))
    decode = replace(decode, per_head=_quantity(1e-6))
    charged = replace(p, attention=replace(p.attention, mla_decode=decode))
    found, without = (ops.mla_decode_s(x, 100, 1 << 20, 16, 576, 512, 1152) for x in (charged, free))
    assert found - without == pytest.approx(100 * 16 * 1e-6)


def test_a_dtype_without_kernels_reads_its_bytes_and_computes_in_the_next() -> None:
    """Red when a fallback is silent, or reads the wrong bytes."""
    p = load_profile("bw1000")
    kernel = ops.gemm_kernel(p, "fp8_block")
    assert (kernel.entry, kernel.computes_in) == (p.gemm.bfloat16, "bfloat16")
    assert ops.gemm_kernel(p, "int8").computes_in == "int8"
    skinny = [ops.gemm_s(p, 1, 16384, 16384, dtype) for dtype in ("fp8_block", "bfloat16")]
    assert skinny[0] < 0.6 * skinny[1]
    large = [ops.gemm_s(p, 16384, 16384, 16384, dtype) for dtype in ("fp8_block", "bfloat16")]
    assert large[0] == pytest.approx(large[1], rel=0.05)
    with pytest.raises(ProfileError, match="'fp4'"):
        ops.gemm_s(p, 1, 1, 1, "fp4")


def test_narrow_shards_of_experts_are_slower_per_column() -> None:
    """Red when the width of a shard no longer decides the arithmetic's speed."""
    p = load_profile("h200")
    whole = ops.grouped_gemm_s(p, 1 << 16, 32, 7168, 2048, 1, "fp8_block")
    eighth = ops.grouped_gemm_s(p, 1 << 16, 32, 7168, 2048, 8, "fp8_block")
    between = ops.grouped_gemm_s(p, 1 << 16, 32, 7168, 1536, 1, "fp8_block")
    assert whole / 8 < eighth < whole
    assert eighth < between < whole


def test_experts_that_are_hit_cost_their_weights() -> None:
    """Red when the weights of experts that are not hit are read, or those of hit ones are not."""
    p = load_profile("h200")
    few, many = (ops.grouped_gemm_s(p, 32, hit, 7168, 2048, 1, "fp8_block") for hit in (4, 32))
    assert many - few == pytest.approx(
        28 * 3 * 7168 * 2048 / p.moe.fp8_block.bandwidth.value,  # type: ignore[union-attr]
        rel=0.1,
    )


def test_collectives_take_the_cheaper_protocol_and_one_rank_pays_nothing() -> None:
    """Red when the two protocols are added or swapped."""
    p = load_profile("h200")
    protocols = p.collective.all_reduce[8]
    assert protocols.beta_large is not None
    small, large = ops.collective_s(p, "all_reduce", 8, np.array([1.0, 1e12]))
    assert small == pytest.approx(protocols.alpha.value, rel=1e-3)
    assert 1e12 / large == pytest.approx(protocols.beta_large.value, rel=0.01)
    assert ops.collective_s(p, "all_reduce", 1, 1e9) == 0


def test_group_sizes_that_are_missing_lie_between_their_neighbours() -> None:
    """Red when interpolation leaves the interval."""
    p = load_profile("cpu")
    sizes = {2: p.collective.all_reduce[2], 8: replace(p.collective.all_reduce[2], alpha=_quantity(1e-4))}
    p = replace(p, collective=replace(p.collective, all_reduce=sizes))
    two, four, eight = (ops.collective_s(p, "all_reduce", ranks, 1000.0) for ranks in (2, 4, 8))
    assert two < four < eight
    assert four == pytest.approx((two + eight) / 2)
    assert ops.collective_s(p, "all_reduce", 64, 1000.0) == eight


def _quantity(value: float) -> Quantity:
    return Quantity(value, "assumed: for a test")


def test_a_group_larger_than_a_node_pays_the_network() -> None:
    """Red when the network is free, or an all-to-all leaves the node no more than a ring does."""
    p = load_profile("h200")
    inside, outside = (ops.collective_s(p, "all_to_all", ranks, 1e9) for ranks in (8, 16))
    assert outside == pytest.approx(1e9 * (8 / 15) / 50e9, rel=0.01)
    assert outside > 2 * inside
    assert ops.collective_s(p, "all_reduce", 16, 1e9) < outside
    with pytest.raises(ProfileError, match="network_bandwidth"):
        ops.collective_s(load_profile("cpu"), "all_to_all", 1024, 1.0)


def test_a_chunk_computes_whole_tiles() -> None:
    """Red when tiles are dropped, or a chunk's history is taken for causal."""
    prefill = load_profile("h200").attention.mla_prefill
    assert prefill.tile is not None
    assert prefill.tile.value == 128
    assert ops.prefill_pairs(prefill, 1, 0) == 128 * 128
    assert ops.prefill_pairs(prefill, 256, 0) == 3 * 128 * 128
    assert ops.prefill_pairs(prefill, 128, 1024) == 9 * 128 * 128
    exact = replace(prefill, tile=None)
    assert ops.prefill_pairs(exact, 3, 5) == 6 + 7 + 8


def test_a_single_long_context_is_read_slower_than_many() -> None:
    """Red when one row gets the whole device's bandwidth: striping it over ranks pays for that reason."""
    p = load_profile("b200")
    one = ops.mla_decode_s(p, 1, 1 << 20, 16, 576, 512, 1152)
    many = ops.mla_decode_s(p, 64, 1 << 20, 16, 576, 512, 1152)
    assert one > 1.3 * many


def test_experts_that_are_held_cost_even_when_few_are_hit() -> None:
    """Red when the number of experts on a rank, or of tokens that it sorts, is ignored."""
    p = load_profile("h200")
    few, held, sorting = (
        ops.grouped_gemm_s(p, 8, 8, 7168, 2048, 1, "fp8_block", **more)
        for more in ({}, {"experts_held": 256}, {"tokens": 16384})
    )
    assert held - few == pytest.approx(248 * p.moe.fp8_block.per_expert.value)  # type: ignore[union-attr]
    assert sorting > 1.5 * few
