"""The fewest ranks for a rate: minimal, in a steady state, and honest where none will do."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import accumulate
from math import ceil

import pytest

from splash.core.errors import ConfigError
from splash.layout.layouts import LAYOUTS, assigned
from splash.layout.work import DecodeRows, Work
from splash.sim.deployment import deploy
from splash.sim.fitting import possible_ranks
from splash.sim.modes import simulate
from splash.sim.planner import Plan
from splash.sim.presets import choose
from splash.sim.target import CLOSE, Answer, Limit, Traffic, fewest_ranks, serve, with_ranks
from splash.sim.workload import Arrival, Workload


def plan_of(model: str) -> Plan:
    choice = choose(model, None)
    return Plan(choice.model.name, choice.model.spec, choice.profile, choice.settings)


FLASH = plan_of("glm-5.3-flash")
RANKS = tuple(possible_ranks(FLASH.spec, FLASH.profile, 32))


def answer_to(traffic: Traffic, ranks: tuple[int, ...] = RANKS) -> Answer:
    return fewest_ranks(FLASH, traffic, ranks)


def able(ranks: int, traffic: Traffic) -> set[str]:
    """The layouts in which so many ranks do it."""
    plan = with_ranks(FLASH, ranks)
    return {name for name, layout in LAYOUTS.items() if serve(plan, layout, traffic).limit is None}


@pytest.mark.parametrize(
    "traffic",
    [
        Traffic(1.0),
        Traffic(8.0),
        Traffic(2.0, tpot_s=0.05),
        Traffic(0.5, prompt_tokens=30_000, output_tokens=200, ttft_s=3.0),
    ],
)
def test_the_answer_is_minimal(traffic: Traffic) -> None:
    """Red when fewer ranks would have done, or those that are named do not."""
    answer = answer_to(traffic)
    assert answer.ranks is not None
    assert answer.service is not None
    assert answer.service.layout in able(answer.ranks, traffic)
    assert not any(able(ranks, traffic) for ranks in RANKS if ranks < answer.ranks)


def test_more_traffic_never_needs_fewer_ranks() -> None:
    """Red when the answers to a growing rate jump back."""
    found = [answer_to(Traffic(rate)).ranks or 10**6 for rate in (0.5, 1, 2, 4, 8, 12, 20)]
    assert found == sorted(found)
    assert len(set(found)) > 1


def test_the_steady_state_is_littles() -> None:
    """Red when the requests that decode are not rate × outputs × the time between steps, rounded up."""
    traffic = Traffic(4.0)
    for layout in LAYOUTS.values():
        service = serve(with_ranks(FLASH, 16), layout, traffic)
        assert service.limit is None
        assert service.running is not None
        assert service.tpot_s is not None
        assert ceil(traffic.rate * traffic.output_tokens * service.tpot_s) == pytest.approx(
            service.running, abs=1
        )


def test_without_prompts_to_speak_of_a_token_takes_a_step() -> None:
    """Red when TPOT is not the cost model's decode step, but for the share of prompts of one token."""
    traffic = Traffic(0.01, prompt_tokens=1, output_tokens=1000)
    service = serve(FLASH, LAYOUTS["tp"], traffic)
    step_s = FLASH.cost.step_s(Work((DecodeRows(assigned(LAYOUTS["tp"], 0), 1, 501.0, 501.0),), sampled=1))
    assert service.running == 1
    assert service.tpot_s == pytest.approx(step_s, rel=2e-3)


@pytest.mark.parametrize("layout", ["dop", "tp"])
def test_the_simulator_agrees(layout: str) -> None:
    """Red when what the model of the queue says of a steady load is not what serving it on the virtual clock gives."""
    traffic = Traffic(6.0, prompt_tokens=1024, output_tokens=64)
    chance = random.Random(5)
    times = accumulate(chance.expovariate(traffic.rate) for _ in range(900))
    arrivals = tuple(Arrival(round(t * 1e9), traffic.prompt_tokens, traffic.output_tokens) for t in times)
    deployment = deploy(FLASH.model, FLASH.spec, FLASH.profile, FLASH.settings)
    run = simulate(deployment, Workload("poisson", arrivals), layout, stopwatch=lambda: 0.0)
    service = serve(FLASH, LAYOUTS[layout], traffic)
    assert service.tpot_s == pytest.approx(run.tpot_s.mean, rel=0.1)
    assert service.ttft_s == pytest.approx(run.ttft_s.mean, rel=0.2)


@pytest.mark.parametrize(
    ("traffic", "limits"),
    [
        (Traffic(1e5), {Limit.WORK, Limit.RUNNING}),
        (Traffic(4.0, tpot_s=1e-3), {Limit.TPOT}),
        (Traffic(4.0, ttft_s=1e-3), {Limit.TTFT}),
        (Traffic(4.0, prompt_tokens=2_000_000), {Limit.LENGTH}),
        (
            Traffic(0.2, prompt_tokens=500_000, output_tokens=20_000),
            {Limit.MEMORY, Limit.WORK, Limit.RUNNING},
        ),
    ],
)
def test_what_is_in_the_way_is_named(traffic: Traffic, limits: set[Limit]) -> None:
    """Red when a failure is put down to something else."""
    answer = answer_to(traffic, (8,))
    assert answer.ranks is None
    assert {service.limit for service in answer.tried[8]} <= limits


def test_how_far_it_goes_is_a_rate_that_is_carried_and_hardly_more_is() -> None:
    """Red when the rate that is named is not carried, or a higher one is by any number of the ranks."""
    answer = answer_to(Traffic(60.0, tpot_s=0.06), (8, 16))
    assert answer.ranks is None
    assert answer.most is not None
    assert answer.most_ranks is not None
    assert answer.most_service is not None
    assert answer.most_service.layout in able(answer.most_ranks, Traffic(answer.most, tpot_s=0.06))
    higher = Traffic(CLOSE**2 * answer.most, tpot_s=0.06)
    assert not able(8, higher) | able(16, higher)


def test_a_target_that_no_rate_meets_is_answered_with_the_nearest() -> None:
    """Red when the shortest step there is goes unsaid."""
    answer = answer_to(Traffic(1.0, tpot_s=1e-4), (8,))
    assert answer.most is None
    assert answer.most_service is not None
    times = [
        service.tpot_s
        for layout in LAYOUTS.values()
        if (service := serve(FLASH, layout, Traffic(1e-3))).tpot_s is not None
    ]
    assert answer.most_service.tpot_s == min(times)


def test_nonsense_is_named_with_its_option() -> None:
    """Red when a rate of nothing or a negative target is computed with."""
    with pytest.raises(ConfigError, match="--target-rate"):
        Traffic(0.0)
    with pytest.raises(ConfigError, match="--tpot"):
        Traffic(1.0, tpot_s=-1.0)
    with pytest.raises(ConfigError, match="few ranks"):
        fewest_ranks(replace(FLASH), Traffic(1.0), ())
