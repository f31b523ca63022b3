"""What a request keeps on a rank: sizes, and that no row straddles a page."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from splash.exec.states import StateTable, state_views
from splash.kv.slots import MemoryPlan, plan_memory
from splash.kv.state import MATRICES, TAIL, TAPS
from splash.spec.config import normalise
from tests.unit import config_shapes as shapes


def flash(ranks: int, dtype: str = "bfloat16") -> MemoryPlan:
    spec = normalise(shapes.GLM_5_3_FLASH)
    return plan_memory(spec, ranks=ranks, dtype=dtype, block_size=64, kv_pages=400)


@pytest.mark.parametrize("ranks", [1, 8])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_state_has_the_bytes_of_the_model(ranks: int, dtype: str) -> None:
    """MODELS §3.2: 142.6 MB of matrices and 5.0 MB of convolution inputs in bf16, divided by the ranks."""
    spec = normalise(shapes.GLM_5_3_FLASH)
    state = flash(ranks, dtype).state
    assert state is not None
    sizes = {section.name: section.num_bytes for section in state.sections}
    assert sizes[MATRICES] * ranks == 34 * 64 * 128 * 128 * 4
    assert sizes[MATRICES] + sizes[TAPS] == spec.state_bytes(ranks, 2 if dtype == "bfloat16" else 4)
    assert sizes[TAIL] == 11 * 3 * 2 * 128 * (2 if dtype == "bfloat16" else 4), "whole on every rank"
    assert state.num_bytes - sum(sizes.values()) < 3 * 1024


def test_pages_lose_less_than_one_to_a_state() -> None:
    for ranks in (1, 2, 4, 8, 16):
        memory = flash(ranks)
        assert memory.state is not None
        assert (
            0
            <= memory.state_pages * memory.pages.page_bytes - memory.state.num_bytes
            < memory.pages.page_bytes
        )


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_every_byte_of_the_rows_lies_in_a_page_of_the_state_and_is_nobody_elses(dtype: str) -> None:
    """The state of one request in pages out of order, read through the views of a pool."""
    memory = flash(8, dtype)
    assert memory.state is not None
    pages = np.random.default_rng(0).permutation(400)[: memory.state_pages]
    table = StateTable(memory.state, pages.tolist())
    seen = np.zeros((400, memory.pages.page_bytes // 256), dtype=np.int32)
    for section, rows in zip(memory.state.sections, table.rows, strict=True):
        assert rows.shape == (section.layers, 1, section.rows)
        width = section.row_bytes // 256
        units = rows.flatten().numpy()[:, None] * width + np.arange(width)
        np.add.at(seen.reshape(-1), units.flatten(), 1)
    assert seen.max() == 1, "rows do not overlap"
    assert set(np.flatnonzero(seen.any(axis=1))) == set(pages)


def test_a_moved_page_is_looked_up_anew() -> None:
    memory = flash(8)
    assert memory.state is not None
    table = StateTable(memory.state, range(memory.state_pages))
    first = table.rows.matrices[0, 0, 0].item()
    table.move(0, 300)
    assert table.rows.matrices[0, 0, 0] == first + 300 * memory.pages.page_bytes // 512


def test_views_are_the_pool_itself() -> None:
    memory = flash(8)
    assert memory.state is not None
    pool = torch.zeros(3 * memory.pages.page_bytes + 64, dtype=torch.uint8)
    views = state_views(pool, memory.state)
    views.taps[-1] = 1.0
    assert pool[: 3 * memory.pages.page_bytes].nonzero().max() >= 3 * memory.pages.page_bytes - 2
    assert views.matrices.dtype is torch.float32
    assert views.tail.shape[1] == 256
