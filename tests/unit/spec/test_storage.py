"""Bytes of weights and KV by storage, against the figures of MODELS and against what the engine allocates."""

from __future__ import annotations

from collections import Counter

import pytest

from splash.core.errors import ConfigError
from splash.kv.slots import plan_memory
from splash.spec.config import normalise
from splash.spec.model import ModelSpec
from splash.spec.storage import (
    KVStorage,
    block_bytes,
    kv_storage,
    rank_weight_bytes,
    token_bytes,
    weight_storage,
)
from splash.spec.tensors import (
    Division,
    LogicalTensor,
    Part,
    Precision,
    held_shape,
    model_tensors,
    num_params,
    rank_bytes,
)
from tests.unit import config_shapes as shapes

GIB = 2**30
V32, GLM, FLASH = (normalise(shape) for shape in (shapes.DEEPSEEK_V3_2, shapes.GLM_5_3, shapes.GLM_5_3_FLASH))
SMALL = normalise({**shapes.LLAMA_3_2_1B, "num_hidden_layers": 2})


def test_kv_bytes_are_those_of_the_table() -> None:
    """Red when a scale, the BF16 rope key or an index key is left out, or index keys lie on layers without one
    (MODELS §3.2)."""
    bf16, fp8 = kv_storage("bfloat16"), kv_storage("fp8")
    assert [token_bytes(spec, fp8, ranks=8) for spec in (V32, GLM, FLASH)] == [48_068, 53_940, 6_171]
    assert [token_bytes(spec, bf16, ranks=8) for spec in (V32, GLM, FLASH)] == [78_324, 92_628, 11_627]
    wide = KVStorage("bfloat16", index="bfloat16")
    assert token_bytes(GLM, wide, ranks=8) == 78 * 1152 + 21 * 256
    assert token_bytes(normalise(shapes.GLM_4_7_FLASH), fp8, ranks=4) == 30_832
    assert 8 * token_bytes(normalise(shapes.LLAMA_3_1_405B), bf16, ranks=8) == 516_096
    assert 4 * token_bytes(normalise(shapes.QWEN3_235B_A22B), bf16, ranks=8) == 192_512


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("spec", [V32, GLM, FLASH, SMALL], ids=lambda spec: spec.model_type)
def test_a_block_is_what_the_engine_allocates(spec: object, dtype: str) -> None:
    """Red when capacity arithmetic and the page format disagree."""
    from splash.spec.model import ModelSpec

    assert isinstance(spec, ModelSpec)
    pages = plan_memory(spec, ranks=8, dtype=dtype, block_size=64, kv_pages=90).pages
    assert pages.page_bytes == block_bytes(spec, KVStorage(dtype, dtype), ranks=8, block_size=64)


def test_blocks_hold_whole_pools() -> None:
    """Red when half an index key is counted."""
    with pytest.raises(ConfigError, match="blocks of 6 tokens do not hold whole pools of 4"):
        block_bytes(FLASH, kv_storage("fp8"), ranks=8, block_size=6)


def test_scales_count_incomplete_tiles() -> None:
    """Red when tiles are rounded down: kv_a has 576 rows, 4.5 tiles, and needs 5 rows of scales (MODELS §2.1)."""
    kv_a = LogicalTensor("kv_a", (576, 7168), Division.NONE, Part.LATENT)
    fp8, int8 = weight_storage("fp8_block"), weight_storage("int8")
    assert fp8.scales(kv_a, kv_a.shape) == 5 * 56 * 4
    assert int8.scales(kv_a, kv_a.shape) == 576 * 4
    assert fp8.elements(kv_a, kv_a.shape) == int8.elements(kv_a, kv_a.shape) == 576 * 7168


def test_what_stays_wide() -> None:
    """Red when embeddings, norms, routers or an indexer's weights_proj are counted as quantised, or KDA is in FP8."""
    fp8, int8 = weight_storage("fp8_block"), weight_storage("int8")
    bits = {
        name: storage.elements(tensor, tensor.shape) / tensor.num_params
        for storage in (fp8, int8)
        for name, tensor in (
            ("vocabulary", LogicalTensor("", (9, 9), Division.VOCABULARY, Part.VOCABULARY, Precision.PLAIN)),
            ("router", LogicalTensor("", (9, 9), Division.ROUTER, Part.ROUTER, Precision.EXACT)),
            ("router bias", LogicalTensor("", (9,), Division.ROUTER, Part.ROUTER, Precision.EXACT)),
            (f"KDA {storage.name}", LogicalTensor("", (9, 9), Division.STATE_ROWS, Part.KDA)),
        )
    }
    assert bits == {"vocabulary": 2, "router": 2, "router bias": 4, "KDA fp8_block": 2, "KDA int8": 1}
    parts = rank_weight_bytes(FLASH, fp8, ranks=1).parts
    assert parts[Part.KDA] == pytest.approx(34 * (136.58e6 + 1.05e6) * 2, rel=2e-3)  # MODELS §3.1


def test_the_fp8_release_of_flash_has_its_size() -> None:
    """Red when a part of the release is missed or counted twice: 305 GiB are seen, with the prediction layer and
    the vision tower (MODELS §1.1)."""
    release = rank_weight_bytes(FLASH, weight_storage("fp8_block"), ranks=1).own + 7.43e9 + 2 * 0.56e9
    assert release / GIB == pytest.approx(305.4, rel=1e-3)


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_ranks_together_hold_the_model(name: str) -> None:
    """Red when a part is held twice or not at all; llama divides everything but norms evenly over two ranks."""
    storage = weight_storage(name)
    whole, half = (rank_weight_bytes(SMALL, storage, ranks=ranks) for ranks in (1, 2))
    norms = whole.parts[Part.NORMS]
    assert whole.own == num_params(SMALL) * storage.linear
    assert 2 * half.own == whole.own + norms
    assert half.full == half.own + half.parts[Part.ATTENTION]
    assert half.own == rank_bytes(SMALL, rank=1, ranks=2, itemsize=storage.linear)


def test_unknown_types_are_named() -> None:
    """Red when a misspelt type ends in a traceback or is taken for another."""
    with pytest.raises(ConfigError, match=r"unknown weight type 'fp4'; known: float32, bfloat16, fp8_block"):
        weight_storage("fp4")
    with pytest.raises(ConfigError, match=r"unknown KV type 'int4'; known: float32, bfloat16, fp8"):
        kv_storage("int4")


@pytest.mark.parametrize("spec", [V32, GLM, FLASH, SMALL], ids=lambda spec: spec.model_type)
def test_alike_layers_are_counted_once_and_all(spec: ModelSpec) -> None:
    """Red when layers with other tensors are taken for alike, or one is left out: the slow sum is over every tensor."""
    storage = weight_storage("fp8_block")
    slow: Counter[Part] = Counter()
    for tensor in model_tensors(spec):
        slow[tensor.part] += storage.elements(tensor, held_shape(spec, tensor, rank=7, ranks=8))
    assert rank_weight_bytes(spec, storage, ranks=8).parts == slow
