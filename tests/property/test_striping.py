"""Long requests striped beside short ones with owners: goals by length, growth, memory, and back."""

from __future__ import annotations

import pytest

from splash.core.events import SwitchDone
from splash.layout.layouts import DOP, LAYOUTS, Placement
from splash.sched.policy import Decision, Load
from splash.sched.target import Target, target_named
from tests.property.harness import Harness, expected_tokens


class Told:
    """A policy that says what it is told to."""

    name = "told"
    period_steps = calm_period_steps = 4

    def __init__(self, decision: Decision | None) -> None:
        self.decision = decision
        self.loads: list[Load] = []

    def decide(self, load: Load) -> Decision | None:
        self.loads.append(load)
        return self.decision


def placements(harness: Harness) -> dict[int, str]:
    return {record.id: record.present.layout.name for record in harness.scheduler.running.values()}


@pytest.mark.parametrize(("owner", "striped"), [("dp", "cp"), ("dop", "dcp")])
def test_long_requests_are_striped_and_short_ones_stay_with_owners(owner: str, striped: str) -> None:
    policy = Told(Decision(owner, "long ones apart", striped_from=40))
    h = Harness(ranks=4, kv_pages=200, target="tp", policy=policy)
    short = [h.add(8, 60) for _ in range(3)]
    long = [h.add(70, 60), h.add(50, 60)]
    for _ in range(24):
        h.step()
    h.settle()
    where = placements(h)
    assert {where[i] for i in long} == {striped}
    assert {where[i] for i in short} == {owner}
    assert policy.loads[-1].striped_from == 40
    late = h.add(64, 20)
    h.step()
    assert h.scheduler.running[late].goal.layout.name == striped
    h.drain()
    for request in (*short, *long):
        assert len(h.outputs[request]) == 60


def test_a_request_that_becomes_long_is_striped_then() -> None:
    h = Harness(ranks=2, kv_pages=200, target="dop", policy=Told(Decision("dop", "apart", striped_from=60)))
    request, other = h.add(20, 200), h.add(10, 40)
    seen = set()
    while h.step():
        seen.add(placements(h).get(request))
    assert {"dop", "dcp"} <= seen
    assert h.outputs[request] == expected_tokens(request, 20, 200)
    assert h.outputs[other] == expected_tokens(other, 10, 40)


def test_without_a_bound_all_go_back_to_owners() -> None:
    policy = Told(Decision("dop", "apart", striped_from=30))
    h = Harness(ranks=4, kv_pages=200, target="dop", policy=policy)
    long = h.add(60, 200)
    for _ in range(12):
        h.step()
    h.settle()
    assert placements(h)[long] == "dcp"
    policy.decision = Decision("dop", "together again")
    for _ in range(12):
        h.step()
    h.settle()
    assert placements(h)[long] == "dop"


def test_a_switch_of_the_long_requests_alone_says_what_it_is() -> None:
    """Red when a reader finds "dop → dop" and nothing that tells what moves."""
    policy = Told(Decision("dop", "apart", striped_from=30))
    h = Harness(ranks=4, kv_pages=200, target="dop", policy=policy)
    h.add(60, 200)
    for _ in range(12):
        h.step()
    h.settle()
    policy.decision = Decision("dop", "together again")
    for _ in range(12):
        h.step()
    h.settle()
    h.scheduler.drain_events()
    done = [event for event in h.events if isinstance(event, SwitchDone)]
    assert [(event.old, event.new) for event in done] == [("dop", "dop")] * 2
    assert [(event.old_striped_from, event.new_striped_from) for event in done] == [(None, 30), (30, None)]
    assert [event.reason for event in done] == ["apart", "together again"]
    assert str(Target(DOP, 30)) == "dop+dcp from 30"
    assert str(Target(DOP, 32768)) == "dop+dcp from 32 K"


def test_a_request_that_no_owner_holds_is_taken_where_it_would_be_striped() -> None:
    h = Harness(ranks=4, kv_pages=20, target="dop", policy=Told(Decision("dop", "apart", striped_from=64)))
    h.add(8, 60)
    for _ in range(12):
        h.step()
    h.settle()
    request = h.add(150, 30)
    h.drain()
    assert h.outputs[request] == expected_tokens(request, 150, 30)


def test_only_owner_layouts_stripe() -> None:
    for name, layout in LAYOUTS.items():
        target = target_named(name, 10)
        assert target.layout_of(9) is layout
        striped = target.layout_of(10)
        if layout.placement is Placement.OWNER:
            assert (striped.placement, striped.projection) == (Placement.STRIPED, layout.projection)
        else:
            assert striped is layout
