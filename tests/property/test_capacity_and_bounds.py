"""Capacity to the page, refusals with numbers, deadlines, rebalancing, preemption, warm replicas."""

from __future__ import annotations

import pytest

from splash.core.errors import CapacityError, ConfigError, RequestError
from splash.core.events import (
    CopyProgress,
    RequestFlipped,
    RequestPreempted,
    ResidencyChanged,
    StageCancelled,
    SwitchDone,
    TargetRefused,
)
from splash.layout.capacity import pages_per_block, total_tokens
from splash.layout.layouts import LAYOUTS, layout_named
from splash.sched.goals import room
from splash.sched.policy import Decision, Load
from tests.property.harness import Harness, expected_tokens


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("name", sorted(LAYOUTS))
def test_a_layout_admits_exactly_what_capacity_says(name: str, groups: int) -> None:
    """Requests of one block each, until one more does not fit: the tokens are capacity.py's, to the page."""
    h = Harness(target=name, groups=groups, kv_pages=40, watermark_pages=0, max_running=10_000)
    h.step()
    h.settle()
    layout = layout_named(name)
    tokens = total_tokens(layout, room(h.scheduler.store), h.topo, 4)
    for _ in range(tokens // 4 + 5):
        h.add(4, 1)
    plan = h.scheduler.schedule()
    assert plan is not None
    assert len(plan.admits) == tokens // 4
    left = sum(pool.available for pool in h.scheduler.store.pools)
    promised = (len(plan.admits) - len({g.request for g in plan.grants})) * pages_per_block(layout, h.topo)
    assert 0 <= left - promised < h.topo.ranks * groups


def test_a_target_that_cannot_fit_is_refused_with_numbers() -> None:
    h = Harness(target="dop", kv_pages=14, prefer_slots=True)
    requests = [h.add(30, 12) for _ in range(6)]
    for _ in range(12):
        h.step()
    h.scheduler.set_target("tp", "test")
    h.drain()
    refusals = [e for e in h.events if isinstance(e, TargetRefused)]
    assert refusals
    assert "tp needs " in refusals[0].reason
    assert "its pool has 23" in refusals[0].reason
    assert h.scheduler.target == "dop"
    for r in requests:
        assert h.outputs[r] == expected_tokens(r, 30, 12)


def test_a_policy_does_not_ask_again_for_what_was_refused() -> None:
    class Stubborn:
        name = "stubborn"
        period_steps = calm_period_steps = 4
        asked = 0

        def decide(self, load: Load) -> Decision | None:
            self.asked += 1
            return Decision("tp", "always") if load.running >= 4 and not load.prompts else None

    policy = Stubborn()
    h = Harness(target="dop", kv_pages=14, policy=policy)
    for _ in range(6):
        h.add(30, 30)
    for _ in range(40):
        h.step()
    h.scheduler.drain_events()
    refused = sum(isinstance(e, TargetRefused) for e in h.events)
    assert 1 <= refused <= 2 < policy.asked, "asked again only once capacity has changed"


def test_a_request_that_can_never_fit_is_refused_with_both_numbers() -> None:
    h = Harness(target="tp", kv_pages=10)
    with pytest.raises(RequestError, match=r"may cache 299 tokens .* at most 76 tokens .*; raise --kv-pages"):
        h.add(200, 100)  # its prompt alone is too long
    with pytest.raises(RequestError, match=r"may cache 149 tokens .*; lower max_tokens or raise --kv-pages"):
        h.add(50, 100)
    with pytest.raises(RequestError, match=r"512 tokens, the limit .* is 512"):
        h.add(512, 1)
    with pytest.raises(RequestError, match="prompt is empty"):
        h.add(0, 1)


@pytest.mark.parametrize(("num_prompt", "generates"), [(510, 2), (511, 1)])
def test_prompts_at_the_limit_generate_what_is_left(num_prompt: int, generates: int) -> None:
    h = Harness(target="tp", kv_pages=200)
    r = h.add(num_prompt, 50)
    h.drain()
    assert len(h.outputs[r]) == generates
    assert h.reasons[r] == "length"


def test_a_transition_past_its_bound_is_cancelled_with_numbers() -> None:
    """A copier that takes for ever: the request stays as it is, and its tokens are right."""
    h = Harness(target="dop", kv_pages=100, delay=400, transition_slack_steps=10, seed=3)
    r = h.add(40, 200)
    for _ in range(5):
        h.step()
    h.scheduler.set_target("dcp", "test")
    h.drain()
    cancelled = [e for e in h.events if isinstance(e, StageCancelled)]
    assert cancelled
    assert "past twice its prediction + 10" in cancelled[0].reason
    assert not any(isinstance(e, RequestFlipped) for e in h.events)
    assert h.outputs[r] == expected_tokens(r, 40, 200)
    assert [e.outcome for e in h.events if isinstance(e, SwitchDone)] == ["cancelled"]
    h.add(8, 4)
    h.scheduler.set_target("dcp", "asked again: what was given up is tried again")
    h.drain()
    assert [e.outcome for e in h.events if isinstance(e, SwitchDone)] == ["cancelled", "done"]


def test_residency_past_its_bound_is_given_up_with_numbers() -> None:
    h = Harness(target="tp", kv_pages=100, delay=2000, transition_slack_steps=10, seed=3, max_model_len=2000)
    r = h.add(20, 380)
    for _ in range(5):
        h.step()
    h.scheduler.set_target("dp", "test")
    h.drain()
    refused = [e.reason for e in h.events if isinstance(e, TargetRefused)]
    assert "fetching on rank" in refused[0]
    assert "past twice its prediction + 10" in refused[0]
    assert h.outputs[r] == expected_tokens(r, 20, 380)


def test_a_fan_out_is_not_cut_off_by_its_own_bound() -> None:
    """One owner sends to all others, so the source is what takes time: T-1 times the pages of a destination."""
    h = Harness(
        target="dop", kv_pages=500, copy_bytes_per_step=64, transition_slack_steps=8, max_model_len=2000
    )
    r = h.add(416, 900)
    for _ in range(40):
        h.step()
    h.scheduler.pace.step_s = 1e-9  # a page a step
    h.scheduler.set_target("tp", "test")
    h.drain()
    assert not any(isinstance(e, StageCancelled) for e in h.events)
    assert [e.outcome for e in h.events if isinstance(e, SwitchDone)] == ["done"]
    assert h.outputs[r] == expected_tokens(r, 416, 900)


def test_copies_keep_to_their_share_where_they_are_slower_than_the_profile_says() -> None:
    """Red when what ranks tell of the time of copies does not reach the budget; the bound of a switch follows it."""
    h = Harness(
        ranks=2,
        target="dop",
        kv_pages=900,
        copy_bandwidth=2e5,
        copy_share=0.1,
        transition_slack_steps=8,
        max_model_len=4000,
    )
    requests = [h.add(500, 900) for _ in range(2)]
    h.executor.step_s, h.executor.copy_rate = 0.04, 5e4
    for _ in range(100):
        h.step()
    h.scheduler.set_target("tp", "test")
    before = len(h.executor.copied_s)
    h.settle()
    copied_s = [seconds for seconds in h.executor.copied_s[before:] if seconds]
    allowed_s = 0.1 * h.executor.step_s
    assert copied_s[0] > 3 * allowed_s, "nothing is known but the profile"
    assert len(copied_s) > 20
    assert all(seconds < 1.1 * allowed_s for seconds in copied_s[8:])
    assert [e.outcome for e in h.events if isinstance(e, SwitchDone)] == ["done"]
    h.drain()
    for request in requests:
        assert h.outputs[request] == expected_tokens(request, 500, 900)


def test_a_place_that_cannot_hold_a_request_is_refused_with_numbers() -> None:
    h = Harness(ranks=4, groups=4, kv_pages=14, slot_pages=1)
    r = h.add(50, 10)
    h.step()
    with pytest.raises(CapacityError, match=r"may cache 59 tokens; under dop one request has 16"):
        h.scheduler.set_goal(r, "dop", 3)
    h.drain()
    assert h.outputs[r] == expected_tokens(r, 50, 10)


def test_a_goal_of_nobody_or_nowhere_is_refused() -> None:
    """Red when a request that is not running, or a home that is no rank, ends in an error of Python, or is taken."""
    h = Harness(ranks=4, token_budget=8, max_chunk=8, max_running=1)
    r, waiting = h.add(8, 10), h.add(8, 10)
    h.step()
    for nobody in (waiting, 7):
        with pytest.raises(RequestError, match=f"request {nobody} is not running"):
            h.scheduler.set_goal(nobody, "dop", 0)
    for nowhere in (-1, 4):
        with pytest.raises(ConfigError, match=f"home {nowhere} is no rank; the ranks are 0 to 3"):
            h.scheduler.set_goal(r, "dop", nowhere)
    assert not h.scheduler.switching
    h.drain()
    assert h.outputs[r] == expected_tokens(r, 8, 10)


def test_shortage_on_one_rank_leaves_the_others_alone() -> None:
    """Owners with full pools preempt among themselves."""
    h = Harness(target="dop", kv_pages=8, rebalance=False, watermark_pages=0)
    quiet = [h.add(4, 60) for _ in range(4)]
    h.step()
    homes = {x.id: x.present.home for x in h.scheduler.running.values()}
    assert sorted(homes.values()) == [0, 1, 2, 3]
    crowd = [h.add(30, 30) for _ in range(2)]
    h.step()
    for x in crowd:
        h.scheduler.set_goal(x, "dop", 0)
    h.drain()
    preempted = {e.request for e in h.events if isinstance(e, RequestPreempted)}
    assert not preempted & {q for q in quiet if homes[q] != 0}
    for r, (p, n) in zip([*quiet, *crowd], [(4, 60)] * 4 + [(30, 30)] * 2, strict=True):
        assert h.outputs[r] == expected_tokens(r, p, n)


def test_a_kept_home_is_given_up_where_only_that_fits() -> None:
    h = Harness(target="dop", kv_pages=20, slot_pages=20, rebalance=False, copy_bytes_per_step=100_000)
    requests = [h.add(36, 40) for _ in range(4)]
    h.step()
    h.step()
    for r in requests:
        h.scheduler.set_goal(r, "dop", 0)
    h.settle()
    h.scheduler.set_target("dp", "test")
    h.step()
    h.settle()
    assert {x.present.layout.name for x in h.scheduler.running.values()} == {"dp"}
    assert sorted(x.present.home for x in h.scheduler.running.values()) == [0, 1, 2, 3]
    h.drain()


def test_admission_is_held_until_the_slots_are_free() -> None:
    """A standing queue would fill the slots for ever; with admission held, dp becomes real."""
    h = Harness(target="tp", kv_pages=30, slot_pages=10, max_running=100)
    for _ in range(60):
        h.add(20, 30)
    for _ in range(10):
        h.step()
    h.scheduler.set_target("dp", "test")
    rows = 0
    while h.step():
        rows += sum(r.present.layout.name == "dp" for r in h.scheduler.running.values())
    assert rows > 200
    assert h.scheduler.target == "dp"


def test_rebalancing_evens_out_the_owners_by_the_same_machinery() -> None:
    h = Harness(target="dop", kv_pages=200, rebalance=False)
    requests = [h.add(20, 80) for _ in range(8)]
    for _ in range(10):
        h.step()
    for r in requests:
        h.scheduler.set_goal(r, "dop", 0)
    h.settle()
    assert {x.present.home for x in h.scheduler.running.values()} == {0}
    assert h.scheduler.rebalance() == 6
    h.settle()
    homes = [x.present.home for x in h.scheduler.running.values()]
    assert sorted(homes) == [0, 0, 1, 1, 2, 2, 3, 3]
    h.drain()
    for r in requests:
        assert h.outputs[r] == expected_tokens(r, 20, 80)


def test_owners_are_rebalanced_when_they_drift_apart() -> None:
    h = Harness(target="dop", kv_pages=200)
    long = [h.add(20, 300) for _ in range(8)]
    for _ in range(10):
        h.step()
    for r in long:
        if h.scheduler.running[r].present.home != 0:
            h.abort(r)
    assert len(h.scheduler.running) == 2
    for _ in range(200):
        h.step()
    assert len({x.present.home for x in h.scheduler.running.values()}) == 2


def test_preemption_recomputes_and_repeats_no_token() -> None:
    """7 pages of 16, two requests of 34 + 35 tokens (the recipe of LMCache#1969)."""
    h = Harness(ranks=1, kv_pages=7, slot_pages=1, block_size=16, watermark_pages=0)
    a, b = h.add(34, 35), h.add(34, 35)
    h.drain()
    assert any(isinstance(e, RequestPreempted) for e in h.events)
    for r in (a, b):
        assert h.outputs[r] == expected_tokens(r, 34, 35)
        assert h.reasons[r] == "length"


def test_used_pages_after_many_short_requests_are_those_of_the_start() -> None:
    h = Harness(target="tp", kv_pages=40, max_running=64)
    free = [pool.available for pool in h.scheduler.store.pools]
    for i in range(2000):
        h.add(1 + i % 9, 1 + i % 5)
    h.drain(limit=20_000)
    h.scheduler.store.collect(10**9)
    assert [pool.available for pool in h.scheduler.store.pools] == free


def test_warm_replicas_make_weight_moves_zero() -> None:
    h = Harness(target="dp", kv_pages=100, replicas="keep")
    for n in (9, 14, 30, 5):
        h.add(n, 200)
    h.step()
    h.settle()
    for name in ("dop", "dp", "tp", "cp"):
        h.scheduler.set_target(name, "test")
        h.step()
        h.settle()
    h.scheduler.drain_events()
    done = {e.new: e.weight_bytes_received for e in h.events if isinstance(e, SwitchDone)}
    assert done == {"dop": 0, "dp": 0, "tp": 0, "cp": 0}


def test_dropped_replicas_become_kv_pages() -> None:
    h = Harness(target="dp", kv_pages=100, replicas="drop")
    h.add(9, 100)
    h.step()
    h.settle()
    full = h.scheduler.store.pools[0].geometry.kv_pages(4)
    h.scheduler.set_target("dop", "test")
    h.step()
    h.settle()
    h.drain()
    words = [e.slots for e in h.events if isinstance(e, ResidencyChanged) and e.rank == 0]
    assert words[-1] == ["own", "kv", "kv", "kv"]
    assert ["own", "replica", "replica", "replica"] in words
    h.scheduler.store.collect(10**9)
    assert h.scheduler.store.pools[0].available == full + 9


def _one_of_its_own(*, home: int) -> tuple[Harness, int]:
    """Two requests under `dop`, one of which has moved to `dp` on its own."""
    h = Harness(target="dop", kv_pages=100)
    own, _ = h.add(9, 300), h.add(9, 300)
    h.step()
    h.scheduler.set_goal(own, "dp", home)
    h.settle()
    assert [pool.full for pool in h.scheduler.store.pools] == [rank == home for rank in range(4)]
    return h, own


def test_slots_come_back_with_the_last_request_that_needs_them() -> None:
    """Red when a replica outlives the only request for which it was fetched."""
    h, own = _one_of_its_own(home=1)
    before = h.scheduler.store.pools[1].available
    h.abort(own)
    h.step()
    assert not any(pool.full for pool in h.scheduler.store.pools)
    assert h.scheduler.store.pools[1].available >= before + 9
    h.settle()


def test_slots_come_back_when_the_last_request_moves_on() -> None:
    """Red when a replica stays behind where a request has flipped away."""
    h, own = _one_of_its_own(home=1)
    h.scheduler.set_goal(own, "dp", 2)
    h.settle()
    assert [pool.full for pool in h.scheduler.store.pools] == [False, False, True, False]


def test_slots_come_back_before_pages_are_given_out() -> None:
    """Red when the step from which nobody reads replicas still waits for their room."""
    h = Harness(target="dp", kv_pages=100)
    h.add(9, 100)
    h.step()
    h.settle()
    h.scheduler.set_target("dop", "test")
    h.step()
    assert all(pool.full for pool in h.scheduler.store.pools)
    plan = h.scheduler.schedule()
    assert plan is not None
    assert [resident.rank for resident in plan.residents] == [0, 1, 2, 3]
    assert not any(pool.full for pool in h.scheduler.store.pools)


def test_growing_evacuates_what_lies_in_the_slots() -> None:
    h = Harness(target="dop", kv_pages=60, prefer_slots=True)
    requests = [h.add(n, 60) for n in (7, 12, 3, 9)]
    for _ in range(6):
        h.step()
    h.scheduler.set_target("dp", "test")
    h.settle()
    h.drain()
    assert sum(e.evacuated_pages for e in h.events if isinstance(e, CopyProgress)) > 0
    for r, n in zip(requests, (7, 12, 3, 9), strict=True):
        assert h.outputs[r] == expected_tokens(r, n, 60)


def test_a_new_target_keeps_the_stagings_it_can_use() -> None:
    """tp -> dop superseded by tp -> dp: the same placement, so nothing is cancelled."""
    h = Harness(target="dcp", kv_pages=100)
    for n in (40, 40):
        h.add(n, 100)
    for _ in range(6):
        h.step()
    h.scheduler.set_target("dop", "test")
    h.step()
    h.step()
    h.scheduler.set_target("dp", "test")
    h.settle()
    h.scheduler.drain_events()
    assert not any(isinstance(e, StageCancelled) for e in h.events)
    assert [e.outcome for e in h.events if isinstance(e, SwitchDone)] == ["superseded", "done"]
    h.scheduler.set_target("dcp", "test")
    h.step()
    h.step()
    h.scheduler.set_target("tp", "test")
    h.step()
    h.scheduler.drain_events()
    assert [e.reason for e in h.events if isinstance(e, StageCancelled)] == ["a new target"] * 2


def test_what_a_flip_leaves_is_taken_before_a_request_is_preempted() -> None:
    """Red when the old pages of a request that flips at a boundary are not to be had at this boundary: the request that
    stays grows into the room that the other leaves, in the very step in which it leaves."""
    h = Harness(ranks=2, kv_pages=9, target="dop", watermark_pages=0, slot_pages=1, copy_bytes_per_step=4096)
    leaves, comes = h.add(9, 14), h.add(10, 14)
    for _ in range(2):
        h.step()
    h.scheduler.set_goal(comes, "dop", 0)
    h.settle()
    h.scheduler.set_goal(leaves, "dop", 1)
    h.settle()
    h.drain()
    assert [e.home for e in h.events if isinstance(e, RequestFlipped)] == [0, 1]
    assert not [e for e in h.events if isinstance(e, RequestPreempted)]


def test_a_page_given_up_within_a_plan_is_granted_once() -> None:
    """Red when a request's grant for a staging stays in the plan that gives the staging up for another request."""
    h = Harness(ranks=2, kv_pages=4, slot_pages=1, target="dop", watermark_pages=0, copy_bytes_per_step=1)
    moving, staying = h.add(6, 10), h.add(6, 10)
    h.step()
    h.scheduler.set_goal(moving, "tp", 0)
    while not any(isinstance(event, StageCancelled) for event in h.events):
        h.step()
    plan = h.plans[-1]
    assert {(grant.request, grant.rank) for grant in plan.grants} == {(moving, 0), (staying, 1)}
    h.drain()
    for request in (moving, staying):
        assert h.outputs[request] == expected_tokens(request, 6, 10)


def test_a_request_goes_where_there_is_room() -> None:
    """Red when it waits for the owner that holds least, which is full, beside another that has room."""
    h = Harness(ranks=2, kv_pages=3, slot_pages=1, target="dop", watermark_pages=0)
    for num_prompt in (6, 1, 1, 1, 1, 5):
        h.add(num_prompt, 2)
    h.step()
    homes = [record.goal.home for record in h.scheduler.running.values()]
    assert homes == [0, 1, 1, 1, 1, 0]
