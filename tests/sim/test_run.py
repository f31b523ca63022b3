"""Runs on a virtual clock: jumps are single steps, seeds repeat, modes keep their promises."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from splash.core.errors import CapacityError, ConfigError
from splash.core.events import (
    Event,
    PoolSampled,
    RequestAdmitted,
    RequestFinished,
    StepDone,
    SwitchDone,
    TargetChanged,
)
from splash.layout.layouts import LAYOUTS
from splash.sched.policy import Decision, Load
from splash.sim.deployment import deploy
from splash.sim.modes import (
    AUTO,
    MODES,
    ORACLE,
    RESTART,
    RESTART_S,
    Restarting,
    better,
    modes_named,
    serve,
    simulate,
    simulation,
)
from splash.sim.presets import choose
from splash.sim.traces import load
from splash.sim.workload import NANOSECONDS, Arrival, Workload
from tests.sim.run_kit import deployed, followed, tight

LOADS = ("rl-drain:prompts=10,samples=8,cap=1500", "steady:rate=30,count=60", "agentic:sessions=4,turns=5")


@pytest.mark.parametrize("text", LOADS)
@pytest.mark.parametrize(("target", "auto"), [("tp", True), ("dop", False), ("dcp", False)])
def test_a_jump_is_single_steps(text: str, target: str, auto: bool) -> None:
    """Same plans, pages, tokens and times to the nanosecond, whether steps are taken one by one or not."""
    workload = load(text, seed=3)
    deployment = deployed("deepseek-v3.2")
    single, slow, one = followed(deployment, workload, jumps=False, target=target, auto=auto)
    jumped, fast, many = followed(deployment, workload, jumps=True, target=target, auto=auto)
    assert len(jumped) < len(single), "nothing was jumped over"
    assert all(plan == single[index] for index, plan in jumped.items())
    assert _told(fast) == _told(slow)
    for a, b in zip(one.scheduler.store.pools, many.scheduler.store.pools, strict=True):
        assert a.counts() == b.counts()


def test_jumps_begin_and_end_with_changes() -> None:
    """Red when the step in which a request ends, or the one after it, is taken by itself."""
    workload = load("rl-drain:prompts=4,samples=4,cap=600", seed=3)
    plans, events, _ = followed(deployed("deepseek-v3.2"), workload, jumps=True, target="dop")
    ends = {event.t for event in events if isinstance(event, RequestFinished)}
    last = {event.step for event in events if isinstance(event, StepDone) and event.t in ends}
    assert len(last) > 4
    assert len(last - plans.keys()) > len(last) / 2
    assert len({step + 1 for step in last} - plans.keys()) > len(last) / 2


@pytest.mark.parametrize("jumps", [False, True])
def test_the_end_is_told_as_it_is(jumps: bool) -> None:
    """Red when the last sample is older than the last finish: pages of requests that are gone look like a leak."""
    workload = load("steady:rate=30,count=20", seed=1)
    _, events, _ = followed(deployed("deepseek-v3.2"), workload, jumps=jumps, target="dop")
    last = [event for event in events if isinstance(event, PoolSampled)][-1]
    assert last.t >= max(event.t for event in events if isinstance(event, RequestFinished))
    assert (last.running, last.waiting) == ({}, 0)
    for pages in last.pages:
        assert {use for use, number in pages.items() if number} == {"free", "weight"}


def test_an_idle_time_is_told_once() -> None:
    """Red when a deployment that waits for its next request says so again and again, or not at all."""
    workload = Workload("two", (Arrival(0, 64, 4), Arrival(60 * NANOSECONDS, 64, 4)))
    _, events, _ = followed(deployed("deepseek-v3.2"), workload, jumps=False)
    idle = [event for event in events if isinstance(event, PoolSampled) and not event.running]
    assert len(idle) == 2


def test_a_jump_ends_where_a_switch_is() -> None:
    """Red when steps are jumped over at which a layout was to become the target."""
    workload, deployment = load("rl-drain:prompts=4,samples=4,cap=600", seed=1), deployed("deepseek-v3.2")
    switches = ((301, "dp"), (77, "dop"))
    single, slow, _ = followed(deployment, workload, jumps=False, auto=True, switches=switches)
    jumped, fast, _ = followed(deployment, workload, jumps=True, auto=True, switches=switches)
    changed = [
        event for event in fast if isinstance(event, TargetChanged) and event.reason.startswith("--switch")
    ]
    assert [(event.step, event.new) for event in changed] == [(77, "dop"), (301, "dp")]
    assert changed[-1] is [event for event in fast if isinstance(event, TargetChanged)][-1], (
        "the policy went on"
    )
    assert len(jumped) < len(single)
    assert _told(fast) == _told(slow)


def test_a_jump_ends_where_memory_does() -> None:
    """Preemptions come at the same steps, of the same requests."""
    workload = load("rl-drain:prompts=4,samples=4,cap=600", seed=1)
    deployment = tight(deployed("deepseek-v3.2"), 40)
    single, slow, _ = followed(deployment, workload, jumps=False, target="tp")
    jumped, fast, _ = followed(deployment, workload, jumps=True, target="tp")
    assert any(type(event).__name__ == "RequestPreempted" for event in slow), "memory was not short"
    assert len(jumped) < len(single)
    assert all(plan == single[index] for index, plan in jumped.items())
    assert _told(fast) == _told(slow)


@pytest.mark.parametrize("seed", [6, 14, 20, 26, 33, 38])
def test_a_jump_is_single_steps_while_requests_wait_for_memory(seed: int) -> None:
    """Red when steps are jumped over in which somebody would be admitted with nobody leaving: flips leave pages that
    retire in the background of the step that found no room, or another home has become the one that holds least."""
    rng = Random(seed)
    times = sorted(rng.randrange(2 * NANOSECONDS) for _ in range(rng.choice([16, 32, 64])))
    arrivals = [Arrival(t, rng.choice([1, 65, 200, 500]), rng.choice([50, 200, 400])) for t in times]
    steps = sorted(rng.sample(range(5, 400), rng.choice([0, 4])))
    switches = tuple((step, rng.choice(sorted(LAYOUTS))) for step in steps)
    deployment = tight(deployed("deepseek-v3.2"), rng.choice([12, 20, 40, 80]))
    workload, target = Workload("random", tuple(arrivals)), rng.choice(["tp", "dop", "dcp"])
    single, slow, _ = followed(deployment, workload, jumps=False, target=target, switches=switches)
    jumped, fast, _ = followed(deployment, workload, jumps=True, target=target, switches=switches)
    assert len(jumped) < len(single)
    assert all(plan == single[index] for index, plan in jumped.items())
    assert _told(fast) == _told(slow)


def _told(events: list[Event]) -> list[Event]:
    """Without the samples of pools, which a jump takes at its end."""
    told = [event for event in events if type(event).__name__ != "PoolSampled"]
    return sorted(told, key=lambda event: (event.t, type(event).__name__, getattr(event, "request", -1)))


@pytest.mark.parametrize("mode", [AUTO, RESTART, ORACLE, "dop"])
def test_a_seeded_run_repeats_bit_for_bit(mode: str) -> None:
    def run() -> dict[str, Any]:
        workload = load("rl-drain:prompts=6,samples=8,cap=800", seed=5)
        data = simulate(deployed("glm-5.3"), workload, mode, stopwatch=lambda: 0.0).to_json()
        return data

    assert run() == run()


@pytest.mark.parametrize("model", ["glm-5.3", "deepseek-v3.2", "glm-5.3-flash"])
def test_every_request_is_served_in_every_mode(model: str) -> None:
    workload = load("steady:rate=20,count=40", seed=2)
    for mode in MODES:
        run = simulate(deployed(model), workload, mode, stopwatch=time.perf_counter)
        assert run.num_requests == len(workload.arrivals)
        assert run.output_tokens == workload.output_tokens
        assert sum(run.time_share.values()) == pytest.approx(1)
        assert min(request.ttft_s for request in run.requests) > 0


def test_fixed_layouts_stay_and_auto_goes_where_it_is_faster() -> None:
    workload = load("rl-drain:prompts=32,samples=8,cap=3000", seed=0)
    deployment = deployed("deepseek-v3.2")
    runs = {mode: simulate(deployment, workload, mode, stopwatch=lambda: 0.0) for mode in (*LAYOUTS, AUTO)}
    for name in LAYOUTS:
        assert runs[name].time_share == {name: 1.0}
        assert not runs[name].switches
    assert runs[AUTO].switches
    assert {switch.outcome for switch in runs[AUTO].switches} == {"done"}
    assert runs[AUTO].makespan_s <= min(runs[name].makespan_s for name in LAYOUTS)


def test_the_oracle_is_at_least_the_best_fixed_layout() -> None:
    workload = load("rl-drain:prompts=16,samples=4,cap=1000", seed=0)
    deployment = deployed("glm-5.3-flash")
    fixed = [simulate(deployment, workload, name, stopwatch=lambda: 0.0) for name in LAYOUTS]
    free = simulate(deployment, workload, ORACLE, stopwatch=lambda: 0.0)
    best = max(run.output_tokens_per_s for run in fixed)
    assert better(free, fixed).output_tokens_per_s >= best
    assert better(fixed[0], fixed).output_tokens_per_s == best
    assert better(free, fixed).layout == ORACLE


def test_free_switches_take_nothing() -> None:
    """Red when the steps in which the oracle's switches were made look like a price."""
    workload = load("rl-drain:prompts=32,samples=8,cap=3000", seed=0)
    free = simulate(deployed("deepseek-v3.2"), workload, ORACLE, stopwatch=lambda: 0.0)
    assert any(switch.seconds for switch in free.switches)
    found = better(free, [])
    assert len(found.switches) == len(free.switches)
    assert {(switch.seconds, switch.bytes, switch.steps) for switch in found.switches} == {(0.0, 0, 0)}


class Wishes:
    """Wants another layout from step 20 on."""

    name = "wishes"
    period_steps = calm_period_steps = 4

    def decide(self, load: Load) -> Decision | None:
        return Decision("dp", "from step 20 on") if load.step >= 20 else None


def test_a_restart_lets_everybody_end_and_serves_nobody_for_its_time() -> None:
    """Red if the change is made at once, somebody is admitted meanwhile, or the pause is left out."""
    events: list[Event] = []
    early = [Arrival(time_ns=0, prompt_tokens=64, output_tokens=n) for n in (60, 200)]
    late = Arrival(time_ns=600_000_000, prompt_tokens=64, output_tokens=20)
    policy = Restarting(Wishes())
    running = simulation(
        deployed("deepseek-v3.2"), Workload("three", (*early, late)), RESTART, policy, sinks=[events.append]
    )
    serve(running, policy)
    ends = [event.t for event in events if isinstance(event, StepDone)]
    stopped_s = max(b - a for a, b in pairwise(ends))
    finished = {e.request: e.t for e in events if isinstance(e, RequestFinished)}
    admitted = {e.request: (e.t, e.layout) for e in events if isinstance(e, RequestAdmitted)}
    assert RESTART_S <= stopped_s < RESTART_S + 1
    assert admitted[0][1] == admitted[1][1] == "tp"
    assert admitted[2][1] == "dp"
    assert admitted[2][0] >= max(finished[0], finished[1]) + RESTART_S
    (switch,) = [event for event in events if isinstance(event, SwitchDone)]
    decided_s = switch.t - switch.seconds
    assert decided_s < min(finished[0], finished[1]), "it is told from its decision"
    assert switch.t == pytest.approx(max(finished[0], finished[1]) + RESTART_S, abs=0.1)
    assert switch.max_boundary_s == RESTART_S
    assert switch.step - switch.steps == 20
    assert [event.t for event in events] == sorted(event.t for event in events)


def test_closed_loop_turns_follow_each_other() -> None:
    """A turn arrives its delay after the last token of the turn before it, not sooner."""
    first = Arrival(time_ns=0, prompt_tokens=100, output_tokens=20, session=0)
    second = Arrival(
        time_ns=0, prompt_tokens=150, output_tokens=10, session=0, after=0, delay_ns=2_000_000_000
    )
    run = simulate(deployed("glm-5.3"), Workload("turns", (first, second)), "tp", stopwatch=lambda: 0.0)
    one, two = run.requests
    assert two.arrival_s == pytest.approx(one.last_token_s + 2.0, abs=1e-6)


def test_modes_by_name() -> None:
    """Red when what is named is left out, or a list with a slip in it is taken for another."""
    assert modes_named("all") == MODES
    assert modes_named("tp, auto") == ("tp", "auto")
    assert modes_named("dcp,all") == ("dcp", *(mode for mode in MODES if mode != "dcp"))
    with pytest.raises(
        ConfigError, match=r"unknown layout 'dopp' \(did you mean 'dop'\?\); known: .*restart"
    ):
        modes_named("tp,dopp")
    for text, complaint in [
        (" ,", "no layout is named"),
        ("tp,,dp", "a layout is missing in 'tp,,dp'"),
        ("dp,tp,dp", "'dp,tp,dp' has dp twice"),
    ]:
        with pytest.raises(ConfigError, match=complaint):
            modes_named(text)


def test_a_model_that_does_not_fit_says_by_how_much() -> None:
    choice = choose("glm-5.3", "h100")
    with pytest.raises(CapacityError, match=r"does not fit on 8 ranks.*GiB too much.*--ranks"):
        deploy("glm-5.3", choice.model.spec, choice.profile, choice.settings)


def test_what_no_layout_can_serve_is_said_with_its_place(tmp_path: Path) -> None:
    """Red when a request vanishes from the figures in silence, or its error names options that a simulation lacks."""
    file = tmp_path / "trace.csv"
    file.write_text("arrival_s,prompt_tokens,output_tokens\n0,10,4\n1,900000000000000,4\n2,10,4\n")
    done = simulate(deployed("glm-5.3"), load(str(file), seed=0), "tp", stopwatch=lambda: 0.0)
    assert done.num_requests == 2
    (refusal,) = done.refused
    assert refusal.startswith("trace.csv:3: the prompt has 900000000000000 tokens, the limit")
    assert "--" not in refusal
    assert done.to_json()["refused"] == 1
    made = Workload("made", (Arrival(0, 2_000_000, 1),))
    nothing = simulate(deployed("glm-5.3"), made, "dp", stopwatch=lambda: 0.0)
    assert (nothing.num_requests, nothing.output_tokens_per_s, nothing.makespan_s) == (0, 0.0, 0.0)
    assert nothing.refused[0].startswith("request 0 of made: ")
