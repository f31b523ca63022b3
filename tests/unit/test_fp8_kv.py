"""KV packed in FP8: bytes as they are counted, numbers to rounding, attention over packed pages as over numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from splash_cpu.attention import CpuAttention

from splash.core.errors import ConfigError
from splash.hal.fp8 import fp8_values, packed, unpacked
from splash.hal.packed import PackedAttention
from splash.hal.protocol import Attention, PagedKV, SeqRows
from splash.hal.reference import ReferenceAttention
from splash.kv.slots import plan_memory
from splash.spec.config import normalise
from splash.spec.packing import Packing
from tests.unit import config_shapes as shapes

PACKINGS = [Packing(512, 64), Packing(128), Packing(32, 16), Packing(200, 6), Packing(512)]


@pytest.mark.parametrize("packing", PACKINGS)
def test_packing_keeps_numbers_to_rounding(packing: Packing) -> None:
    """Red when a scale is another group's, an element saturates, or the plain part is rounded more than to bfloat16."""
    values = torch.randn(7, 3, packing.width, generator=torch.Generator().manual_seed(0))
    values *= torch.logspace(-3, 3, 7)[:, None, None]
    entries = packed(values, packing)
    assert entries.shape == (7, 3, packing.num_bytes)
    assert entries.dtype is torch.uint8
    found = unpacked(entries, packing)
    scaled, plain = found.split([packing.scaled, packing.plain], dim=-1)
    # e4m3 has 3 bits after the leading one; below 2^-6 of a group's scale its steps are 2^-9
    error = (scaled - values[..., : packing.scaled]).abs()
    largest = values[..., : packing.scaled].abs().amax(-1, keepdim=True)
    assert (error <= values[..., : packing.scaled].abs() / 16 + largest * 2**-9 / 224 + 1e-9).all()
    assert torch.equal(plain, values[..., packing.scaled :].bfloat16().float())


@pytest.mark.parametrize("packing", PACKINGS)
def test_packed_again_it_is_the_same(packing: Packing) -> None:
    """Red when scales are no powers of two: what is unpacked would be rounded again wherever it is packed."""
    values = unpacked(packed(torch.randn(50, packing.width), packing), packing)
    assert torch.equal(unpacked(packed(values, packing), packing), values)


def test_fp8_table_is_torchs_conversion() -> None:
    """Red when one of the 256 elements means another number."""
    every = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    assert torch.equal(fp8_values(every).nan_to_num(999.0), every.float().nan_to_num(999.0))


def test_zeros_are_zeros() -> None:
    """Red when an empty group is divided by its largest element."""
    assert torch.equal(unpacked(packed(torch.zeros(2, 576), PACKINGS[0]), PACKINGS[0]), torch.zeros(2, 576))


# ---- bytes


def test_bytes_of_a_token() -> None:
    """Red when a page has other bytes than MODELS §3.2 counts: V3.2 48,068 a token, GLM-5.3 with 21 indexers 53,940."""
    for config, expected in (
        (shapes.DEEPSEEK_V3_2, 48_068),
        (shapes.GLM_5_3, 53_940),
        (shapes.GLM_5_3_FLASH, 6_171),
    ):
        spec = normalise(config)
        plan = plan_memory(spec, ranks=8, dtype="bfloat16", kv_dtype="fp8", block_size=64, kv_pages=99)
        assert plan.pages.token_bytes == expected


def test_bfloat16_beside_float32() -> None:
    """Red when the type of KV decides that of the weights' slots."""
    spec = normalise(shapes.DEEPSEEK_V3)
    wide, narrow = (
        plan_memory(spec, ranks=8, dtype="float32", kv_dtype=kv, block_size=16, kv_pages=9)
        for kv in (None, "bfloat16")
    )
    assert narrow.pages.token_bytes * 2 == wide.pages.token_bytes
    assert narrow.shards == wide.shards


def test_fp8_is_for_latent_attention() -> None:
    """Red when keys and values by head are packed as if they were a latent."""
    with pytest.raises(
        ConfigError, match=r"KV in fp8 is for latent attention, llama has .*--kv-dtype bfloat16"
    ):
        plan_memory(
            normalise(shapes.LLAMA_3_1_405B),
            ranks=8,
            dtype="float32",
            kv_dtype="fp8",
            block_size=16,
            kv_pages=9,
        )


# ---- attention

PACKING, INDEX = Packing(32, 16), Packing(32)
BLOCK, PAGES = 4, 40


def _seqs() -> list[SeqRows]:
    """A chunk, a striped row, one that shares a page with it, and one without keys."""
    return [
        SeqRows(0, 3, 9, np.array([31, 7, 12]), 0, 1, 12),
        SeqRows(3, 1, 30, np.array([5, 38]), 1, 3, 7),
        SeqRows(4, 1, 6, np.array([3, 5]), 0, 1, 7),
        SeqRows(5, 1, 2, np.array([9]), 0, 1, 0),
    ]


@pytest.mark.parametrize("inner", [ReferenceAttention(), CpuAttention()])
def test_packed_pages_are_attended_over_as_their_numbers(inner: Attention) -> None:
    """Red when pages are mixed up on their way into the workspace, or what no sequence reads comes into it."""
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(6, 4, PACKING.width, generator=generator)
    pages = packed(torch.randn(PAGES, BLOCK, 1, PACKING.width, generator=generator), PACKING)
    read = np.concatenate([seq.pages for seq in _seqs()])
    pages[[page for page in range(PAGES) if page not in read]] = 0xFF
    numbers = unpacked(pages, PACKING)
    attention = PackedAttention(inner, PACKING, INDEX)
    out, lse = attention.attend(q, PagedKV(pages, pages), attention.prepare(_seqs(), BLOCK), 0.2)
    exact = ReferenceAttention()
    expected, expected_lse = exact.attend(
        q, PagedKV(numbers, numbers[..., : PACKING.scaled]), exact.prepare(_seqs(), BLOCK), 0.2
    )
    assert torch.allclose(out, expected, atol=1e-5)
    assert torch.allclose(lse, expected_lse, atol=1e-5)


@pytest.mark.parametrize("inner", [ReferenceAttention()])
def test_selection_over_packed_pages(inner: Attention) -> None:
    """Red when chosen tokens are read from another page, or index keys are scored as bytes."""
    generator = torch.Generator().manual_seed(2)
    q = torch.randn(6, 4, PACKING.width, generator=generator)
    pages = packed(torch.randn(PAGES, BLOCK, 1, PACKING.width, generator=generator), PACKING)
    keys = packed(torch.randn(PAGES, BLOCK, INDEX.width, generator=generator), INDEX)
    index_q, weights = (torch.randn(6, 4, *shape, generator=generator) for shape in ((INDEX.width,), ()))
    attention, exact = PackedAttention(inner, PACKING, INDEX), ReferenceAttention()
    chosen = attention.select(index_q, weights, keys, attention.prepare_selection(_seqs(), BLOCK, 5))
    expected = exact.select(
        index_q, weights, unpacked(keys, INDEX), exact.prepare_selection(_seqs(), BLOCK, 5)
    )
    assert torch.equal(chosen.sort().values, expected.sort().values)
    slots = torch.tensor([[31 * 4 + 1, 7 * 4, -1], [5 * 4 + 3, -1, -1], [-1, -1, -1]] * 2)
    numbers = unpacked(pages, PACKING)
    out, lse = attention.attend_selected(q, PagedKV(pages, pages), slots, 0.2)
    plain = PagedKV(numbers, numbers[..., : PACKING.scaled])
    expected_out, expected_lse = exact.attend_selected(q, plain, slots, 0.2)
    assert torch.allclose(out, expected_out, atol=1e-5)
    assert torch.allclose(lse, expected_lse, atol=1e-5)
