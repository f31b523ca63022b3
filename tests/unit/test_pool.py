"""Page states, slots and formats."""

from __future__ import annotations

import pytest

from splash.core.errors import CapacityError
from splash.kv.geometry import PoolGeometry
from splash.kv.pool import PagePool, PageState, SlotState
from splash.kv.sections import ALIGN_BYTES, Field, page_format
from splash.kv.slots import plan_memory, shard_format
from splash.spec.config import normalise


def pool(*, prefer_slots: bool = False) -> PagePool:
    return PagePool(PoolGeometry(30, 64, 4, 2 * 64), rank=1, prefer_slots=prefer_slots)


def test_only_the_own_slot_is_resident_at_first() -> None:
    p = pool()
    p.check()
    assert p.slots == [SlotState.KV, SlotState.RESIDENT, SlotState.KV, SlotState.KV]
    assert p.available == 30 - 2 - 1
    assert not p.full


def test_slot_pages_are_handed_out_last() -> None:
    p = pool()
    null = p.geometry.null_page
    pages = p.take(p.available, PageState.LIVE)
    outside = [page for page in pages if page > null]
    assert pages[: len(outside)] == outside
    assert len(pages) - len(outside) == 6
    with pytest.raises(CapacityError, match="rank 1 has 0 free pages, 1 are needed"):
        p.take(1, PageState.LIVE)
    p.check()


def test_many_are_released_as_one_by_one() -> None:
    """Red when no pages are too few, or a page that is listed twice comes free twice."""
    p = pool()
    p.release_all([])
    pages = p.take(4, PageState.LIVE)
    p.release_all(pages[:2])
    assert [p.state(page) for page in pages] == [PageState.FREE] * 2 + [PageState.LIVE] * 2
    for wrong in (pages[1:3], [pages[2], pages[3], pages[3]]):
        with pytest.raises(AssertionError, match="released while FREE"):
            p.release_all(wrong)
    p.check()


def test_a_draining_slot_gives_out_no_page_and_fills_when_empty() -> None:
    p = pool(prefer_slots=True)
    (page,) = p.take(1, PageState.LIVE)
    slot = page // p.geometry.slot_pages
    p.drain(slot)
    assert all(q // p.geometry.slot_pages != slot for q in p.take(p.available, PageState.LIVE))
    with pytest.raises(AssertionError, match="still holds pages"):
        p.fill(slot)
    p.release(page)
    p.fill(slot)
    p.filled(slot)
    p.check()
    p.open(slot)
    assert p.available == 2
    p.check()


def test_a_pinned_or_free_page_is_not_released() -> None:
    p = pool()
    (page,) = p.take(1, PageState.LIVE)
    p.pin(page)
    p.pin(page)
    p.unpin(page)
    with pytest.raises(AssertionError, match="pins 1"):
        p.release(page)
    p.unpin(page)
    p.release(page)
    with pytest.raises(AssertionError, match="FREE"):
        p.release(page)


def test_the_own_slot_is_never_given_to_kv() -> None:
    with pytest.raises(AssertionError, match="cannot be opened"):
        pool().open(1)


def test_a_pool_too_small_says_what_it_needs() -> None:
    with pytest.raises(
        CapacityError, match=r"4 weight slots of 2 pages.* need 10 \(1\.9 MiB\); raise --kv-pages"
    ):
        PoolGeometry(9, 200_000, 4, 400_000)


def test_sections_are_aligned_and_do_not_overlap() -> None:
    f = page_format([[Field("latent", 9, 4, "float32"), Field("index", 3, 2, "bfloat16")]] * 3, 4)
    end = 0
    for section in f.sections:
        assert section.offset % ALIGN_BYTES == 0
        assert section.offset >= end
        end = section.offset + section.field.token_bytes * 4
    assert f.page_bytes >= end
    assert f.token_bytes == 3 * (36 + 6)


def test_memory_is_planned_from_the_model() -> None:
    spec = normalise(
        {
            "model_type": "llama",
            "vocab_size": 64,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "rms_norm_eps": 1e-5,
        }
    )
    plan = plan_memory(spec, ranks=4, dtype="float32", block_size=16, kv_pages=5)
    assert plan.pages.token_bytes == 2 * 2 * 8 * 4  # layers, k and v, head_dim of one group, fp32
    per_shard = 2 * 4 * (8 * 32 + 8 * 32 + 8 * 32 + 8 * 32)  # q, k, v, o of one head each
    assert shard_format(spec, 4, 4).num_bytes == plan.geometry.shard_bytes == per_shard
    assert plan.geometry.kv_pages(4) == 5
    assert plan.geometry.kv_pages(1) == 5 + 3 * plan.geometry.slot_pages
    by_bytes = plan_memory(spec, ranks=4, dtype="float32", block_size=16, pool_bytes=plan.geometry.pool_bytes)
    assert by_bytes == plan
