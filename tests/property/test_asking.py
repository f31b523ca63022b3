"""When the policy is asked, and what it is told of targets that do not fit."""

from __future__ import annotations

from splash.core.events import TargetRefused
from splash.sched.policy import Decision, Load
from splash.sched.target import target_named
from tests.property.harness import Harness


class Asked:
    """Wishes for the first of its targets that it is not told was refused."""

    name = "asked"
    period_steps = calm_period_steps = 16

    def __init__(self, *wishes: str) -> None:
        self.wishes = wishes
        self.loads: list[Load] = []

    def decide(self, load: Load) -> Decision | None:
        self.loads.append(load)
        possible = [name for name in self.wishes if target_named(name) not in load.refused]
        return Decision(possible[0], "wished") if possible else None


def asked_in(policy: Asked) -> list[int]:
    return [load.step for load in policy.loads]


def test_long_prompts_bring_questions_forward() -> None:
    """Red when questions are spaced in steps alone: four chunks of a long prompt take as long as many steps of decodes,
    and half a step's budget of prompt tokens is enough to ask again."""
    policy = Asked("tp")
    h = Harness(kv_pages=200, policy=policy, token_budget=32, max_chunk=32)
    h.add(1, 40)
    for _ in range(20):
        h.step()
    assert asked_in(policy) == [0, 16]
    h.add(120, 40)
    h.step()
    first = h.plans[-1].step
    for _ in range(3):
        h.step()
    assert asked_in(policy)[2:] == [first, first + 1, first + 2, first + 3]


def test_the_policy_hears_of_arrivals_and_of_refusals() -> None:
    """Red when a refused target goes on hiding the next one, or is tried again with no more memory than before. Under
    tp every rank would hold the pages that under dop four share."""
    policy = Asked("dop")
    h = Harness(kv_pages=20, target="dop", policy=policy)
    for _ in range(4):
        h.add(40, 60)
    for _ in range(20):
        h.step()
    policy.wishes = ("tp", "dcp")
    for _ in range(48):
        h.step()
    h.settle()
    h.scheduler.drain_events()
    assert {refused.target for refused in h.events if isinstance(refused, TargetRefused)} == {"tp"}
    assert h.scheduler.target == "dcp"
    told = [load for load in policy.loads if load.refused]
    assert told
    assert set(told[0].refused) == {target_named("tp")}
    assert [length for _, length in policy.loads[-1].arrived] == [40] * 4
    h.drain()
