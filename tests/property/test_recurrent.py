"""Recurrent states: pages on every rank from admission to the end, moved out of weight slots, never copied by a switch.

The mirror checks in every step that a request goes on from its own state, with all that it has computed and no more.
"""

from __future__ import annotations

import pytest

from splash.core.errors import CapacityError, RequestError
from splash.core.events import RequestPreempted
from splash.kv.pool import PageState
from splash.layout.layouts import LAYOUTS
from tests.property.harness import PAIRS, Harness, expected_tokens, small_memory


def recurrent(h: Harness) -> list[int]:
    return [pool.counts()[PageState.RECURRENT] for pool in h.scheduler.store.pools]


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_a_state_is_granted_at_admission_on_every_rank_and_freed_at_the_end(layout: str) -> None:
    h = Harness(target=layout, kv_pages=60, state_pages=3)
    h.step()
    h.settle()
    for _ in range(4):
        h.add(5, 30)
    h.step()
    assert recurrent(h) == [12] * 4
    h.abort(1)
    for _ in range(2):
        h.step()
    assert recurrent(h) == [9] * 4
    h.drain()
    assert recurrent(h) == [0] * 4


@pytest.mark.parametrize(("old", "new"), PAIRS)
def test_a_switch_moves_no_state(old: str, new: str) -> None:
    """Nor its bytes: the same copies as without states."""
    copied = []
    for state_pages in (0, 3):
        h = Harness(target=old, kv_pages=120, state_pages=state_pages)
        h.step()
        h.settle()
        requests = [h.add(9, 60) for _ in range(3)]
        for _ in range(4):
            h.step()
        before = [[list(pages) for pages in r.state] for r in h.scheduler.running.values()]
        h.scheduler.set_target(new, "test")
        h.step()
        h.settle()
        assert [r.state for r in h.scheduler.running.values()] == before
        copied.append(h.executor.received)
        h.drain()
        assert [h.outputs[r] for r in requests] == [expected_tokens(r, 9, 60) for r in requests]
    assert copied[0] == copied[1]


def test_states_leave_weight_slots_a_few_pages_a_step() -> None:
    """All pages of states lie in slots at first, which `dp` needs for its shards."""
    h = Harness(target="dop", kv_pages=80, slot_pages=8, state_pages=4, prefer_slots=True)
    requests = [h.add(5, 80) for _ in range(5)]
    for _ in range(3):
        h.step()
    null = h.memory.geometry.null_page
    assert all(p < null for r in h.scheduler.running.values() for pages in r.state for p in pages)
    h.scheduler.set_target("dp", "test")
    h.step()
    h.settle()
    assert {r.present.layout.name for r in h.scheduler.running.values()} == {"dp"}
    assert all(p > null for r in h.scheduler.running.values() for pages in r.state for p in pages)
    budget = max(1, 256 // h.memory.pages.page_bytes)
    assert max(sum(m.rank == 0 for m in plan.state_moves) for plan in h.plans) == budget
    h.drain()
    for r in requests:
        assert h.outputs[r] == expected_tokens(r, 5, 80)


def test_admission_counts_the_state_of_every_rank() -> None:
    """Ten pages a rank beside the slots: three states of three and an owner's block; a fourth state has no room."""
    h = Harness(target="dp", kv_pages=10, state_pages=3, watermark_pages=0, replicas="keep")
    h.step()
    h.settle()
    for _ in range(5):
        h.add(3, 1)
    plan = h.scheduler.schedule()
    assert plan is not None
    assert len(plan.admits) == 3, "the owner of a request has its block; all ranks have its state"
    assert all(len(a.state) == 4 and {len(p) for p in a.state} == {3} for a in plan.admits)


def test_a_preempted_request_begins_with_a_new_state() -> None:
    h = Harness(target="tp", kv_pages=26, slot_pages=1, state_pages=3, watermark_pages=0)
    requests = [h.add(6, 30) for _ in range(4)]
    h.drain()
    assert any(isinstance(e, RequestPreempted) for e in h.events)
    for r in requests:
        assert h.outputs[r] == expected_tokens(r, 6, 30)


def test_what_does_not_fit_beside_a_state_is_refused_with_numbers() -> None:
    with pytest.raises(CapacityError, match="takes 5 pages of 128 bytes on each rank, and the pool has 5"):
        small_memory(2, 5, state_pages=5)
    h = Harness(target="dp", kv_pages=7, state_pages=5)
    with pytest.raises(RequestError, match="holds at most 8 tokens of one request under dp"):
        h.add(8, 2)


def test_a_state_may_lie_in_slots_that_the_same_plan_gives_back() -> None:
    """Red when an executor looks at a new state before it has given up the replica that lay there."""
    h = Harness(
        target="dp",
        ranks=2,
        kv_pages=14,
        state_pages=1,
        prefer_slots=True,
        replicas="keep",
        watermark_pages=1,
    )
    h.step()
    h.settle()
    h.scheduler.set_target("dop", "test")
    h.add(40, 4)
    for n in (17, 25, 25):
        h.add(n, 4)
    h.drain()
    null = h.memory.geometry.null_page
    both = [p for p in h.plans if p.residents and any(n < null for a in p.admits for s in a.state for n in s)]
    assert both
