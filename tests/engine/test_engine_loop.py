"""The loop: commands are obeyed at the boundary they are due, and requests end exactly once, wherever they are."""

from __future__ import annotations

import threading
from collections import deque
from pathlib import Path

import pytest

from splash.core.errors import RequestError
from splash.core.events import FirstToken, RequestFinished, TargetChanged
from splash.engine.items import When
from splash.engine.loop import Abort, Inbox, LatchedClock, Retarget, Submit
from splash.engine.trace import (
    Aborted,
    Header,
    Retargeted,
    Stepped,
    Submitted,
    TraceWriter,
    plan_digest,
    read_trace,
)
from splash.sched.policy import ThresholdPolicy, Thresholds
from splash.sched.step import StepPlan, StepResult
from tests.engine.engine_kit import Kit, request
from tests.property.harness import expected_tokens


def test_requests_are_served_and_end_once() -> None:
    """Red when a token is lost, delivered twice, or a request has two ends."""
    kit = Kit()
    for number in range(6):
        kit.inbox.put(Submit(request(number, 3 + 7 * number, 5 + number)))
    kit.inbox.finish()
    assert kit.loop.run()
    assert kit.outbox.reasons() == dict.fromkeys(range(6), "length")
    for number in range(6):
        assert kit.outbox.tokens(number) == expected_tokens(number, 3 + 7 * number, 5 + number)
    assert sum(isinstance(e, RequestFinished) for e in kit.events) == 6


def test_results_are_delivered_while_the_next_step_runs() -> None:
    """Red when text or events are made before ranks have their next plan."""
    kit = Kit()
    kit.inbox.put(Submit(request(0)))
    kit.loop.step()
    assert not kit.outbox.outputs
    seen = []
    submit, collect = kit.executor.submit, kit.executor.collect

    def submitted(plan: StepPlan) -> None:
        seen.append(("submit", len(kit.outbox.outputs)))
        submit(plan)

    def collected() -> StepResult:
        seen.append(("collect", len(kit.outbox.outputs)))
        return collect()

    kit.executor.submit, kit.executor.collect = submitted, collected  # type: ignore[method-assign]
    kit.loop.step()
    kit.loop.step()
    assert seen == [("submit", 0), ("collect", 0), ("submit", 0), ("collect", 1)]


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_ranks_have_plans_ahead_of_results(ahead: int) -> None:
    """Red when the engine takes a result before the plans that may go ahead of it have been handed out."""
    kit = Kit(ahead=ahead)
    kit.inbox.put(Submit(request(0, 5, 20)))
    kit.inbox.finish()
    in_flight = []
    collect = kit.executor.collect

    def watched() -> StepResult:
        in_flight.append(kit.scheduler.in_flight)
        return collect()

    kit.executor.collect = watched  # type: ignore[method-assign]
    assert kit.loop.run()
    assert kit.outbox.tokens(0) == expected_tokens(0, 5, 20)
    assert set(in_flight[: 20 - ahead]) == {ahead + 1}
    assert max(in_flight) == ahead + 1


def test_closing_takes_the_results_in_flight() -> None:
    """Red when tokens that ranks have sampled are lost, or a result is left for nobody, as the loop is closed."""
    kit = Kit()
    kit.inbox.put(Submit(request(0, 5, 30)))
    for _ in range(6):
        kit.loop.step()
    assert kit.scheduler.in_flight == 1
    kit.inbox.close()
    assert not kit.loop.run()
    assert kit.scheduler.in_flight == 0
    assert kit.outbox.tokens(0) == expected_tokens(0, 5, 6)
    assert kit.outbox.reasons() == {0: "abort"}


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 6])
def test_abort_anywhere_gives_everything_back(steps: int) -> None:
    """Red when a request queued, between prompt chunks, decoding or just done leaks pages (CASES 25, 26)."""
    kit = Kit(max_running=2)
    before = kit.free_pages()
    for number in range(3):  # two run, 40 prompt tokens are three chunks; the third waits
        kit.inbox.put(Submit(request(number, 40, 4)))
    for _ in range(steps):
        kit.loop.step()
    for number in range(3):
        kit.inbox.put(Abort(number))
        kit.inbox.put(Abort(number))
    kit.inbox.put(Abort(99))
    kit.inbox.finish()
    assert kit.loop.run()
    ends = [o.request for o in kit.outbox.outputs if o.finish_reason]
    assert sorted(ends) == [0, 1, 2]
    assert "abort" in kit.outbox.reasons().values()
    assert kit.free_pages() == before
    assert not kit.scheduler.running


def test_abort_before_it_is_due() -> None:
    """Red when a withdrawn request arrives all the same."""
    kit = Kit()
    kit.inbox.put(Submit(request(0)), When(step=5))
    kit.inbox.put(Abort(0))
    kit.inbox.finish()
    assert kit.loop.run()
    assert kit.outbox.reasons() == {0: "abort"}
    assert not kit.outbox.steps


def test_commands_wait_for_their_step() -> None:
    """Red when an arrival or a switch takes effect a step early or late."""
    kit = Kit()
    kit.inbox.put(Submit(request(0, 5, 30)))
    kit.inbox.put(Submit(request(1, 5, 4), arrives_when_due=True), When(step=7))
    kit.inbox.put(Retarget("dop", "asked for"), When(step=3))
    kit.inbox.finish()
    assert kit.loop.run()
    (change,) = [e for e in kit.events if isinstance(e, TargetChanged)]
    assert change.step == 3
    admitted = [plan.step for plan, _ in kit.outbox.steps for admit in plan.admits if admit.request == 1]
    assert admitted == [7]
    (first,) = [e for e in kit.events if isinstance(e, FirstToken) and e.request == 1]
    assert first.ttft_s == pytest.approx(0.022), "the result of the step before comes in between"


def test_submits_do_not_wait_for_steps_that_never_come() -> None:
    """Red when an idle loop waits for ever for a step, or what follows the next submit loses its distance to it."""
    kit = Kit()
    kit.inbox.put(Submit(request(0, 5, 2)))
    for number in range(1, 4):
        kit.inbox.put(Submit(request(number, 5, 30)), When(step=99 + number))
    kit.inbox.put(Retarget("dop", "asked for"), When(step=10))
    kit.inbox.put(Retarget("dcp", "asked for"), When(step=150))
    kit.inbox.finish()
    assert kit.loop.run()
    assert set(kit.outbox.reasons().values()) == {"length"}
    admitted = {admit.request: plan.step for plan, _ in kit.outbox.steps for admit in plan.admits}
    first = admitted[1]
    assert first < 8
    assert admitted == {0: 0, 1: first, 2: first + 1, 3: first + 2}
    assert [(e.step, e.new) for e in kit.events if isinstance(e, TargetChanged)] == [(10, "dop")]


def test_an_idle_loop_waits_for_the_time() -> None:
    """Red when a timed arrival comes early, or waiting burns steps."""
    kit = Kit()
    kit.inbox.put(Submit(request(0, 5, 2)), When(time_s=0.05))
    assert not kit.loop.step()
    kit.executor.time_s = 0.05
    assert kit.loop.step()


def test_an_idle_inbox_wakes_for_what_comes() -> None:
    """Red when a command does not wake a waiting loop, or a finished inbox waits."""
    inbox = Inbox()
    timer = threading.Timer(0.02, inbox.put, [Submit(request(0))])
    timer.start()
    inbox.wait(0, 0.0)
    assert inbox.due(0, 0.0, idle=True) == [Submit(request(0))]
    inbox.put(Submit(request(1)), When(time_s=0.01))
    inbox.wait(0, 0.0)
    assert not inbox.due(0, 0.0, idle=True)
    inbox.drop()
    inbox.finish()
    inbox.wait(0, 0.0)


def test_closing_ends_everything_with_abort() -> None:
    """Red when a request that runs, waits or has not arrived is left without an end."""
    kit = Kit(max_running=1)
    for number in range(2):
        kit.inbox.put(Submit(request(number, 5, 50)))
    kit.inbox.put(Submit(request(2)), When(step=400))
    for _ in range(3):
        kit.loop.step()
    kit.inbox.close()
    assert not kit.loop.run()
    assert kit.outbox.reasons() == dict.fromkeys(range(3), "abort")
    assert len(kit.outbox.tokens(0)) == 3
    kit.scheduler.check()


def test_a_request_refused_at_the_boundary_harms_nobody() -> None:
    """Red when a request that the scheduler refuses ends the loop (its target may have changed)."""
    kit = Kit()
    kit.inbox.put(Submit(request(0, 600, 4)))
    kit.inbox.put(Submit(request(1)))
    kit.inbox.finish()
    assert kit.loop.run()
    assert kit.outbox.reasons() == {1: "length"}
    assert isinstance(kit.outbox.refused[0], RequestError)


def test_an_open_switch_ends_before_the_loop() -> None:
    """Red when `finish` cuts off a transition."""
    kit = Kit()
    kit.inbox.put(Submit(request(0, 60, 6)))
    kit.inbox.put(Retarget("dp", "asked for"), When(step=7))
    kit.inbox.finish()
    assert kit.loop.run()
    assert not kit.scheduler.switching
    assert kit.scheduler.target == "dp"


def test_time_stands_still_between_latches() -> None:
    """Red when the scheduler can see a time that the trace does not hold."""
    times = iter((1.0, 2.0))
    clock = LatchedClock(lambda: next(times))
    assert clock.latch() == clock.now() == clock.now() == 1.0


def test_a_trace_repeats_the_plans(tmp_path: Path) -> None:
    """Red when something that decides a plan is missing in the trace: a replay must give the same digests."""
    file = tmp_path / "run.trace"
    policy = Thresholds(many=4, long_context=24, dwell_steps=4, confirm_asks=1)
    writer = TraceWriter(file, Header("0", "mirror", {}))
    kit = Kit(trace=writer, policy=ThresholdPolicy(policy), kv_pages=48)
    for number in range(14):
        kit.inbox.put(Submit(request(number, 3 + 5 * number % 37, 4 + 3 * number)), When(step=2 * number))
    kit.inbox.put(Abort(5), When(step=16))
    kit.inbox.put(Retarget("dcp", "asked for"), When(step=40))
    kit.inbox.finish()
    assert kit.loop.run()
    writer.close()
    records = list(read_trace(file))
    assert {Aborted, Retargeted, Submitted, Stepped} <= {type(r) for r in records}
    assert sum(isinstance(r, TargetChanged) for r in records) >= 2
    assert sum(isinstance(r, Stepped) for r in records) == len(kit.outbox.steps)

    twin = Kit(policy=ThresholdPolicy(policy), kv_pages=48)
    time_s = 0.0
    twin.clock._now_s = lambda: time_s
    steps = deque(record for record in records if isinstance(record, Stepped))
    num_planned = 0
    for record in records:
        match record:
            case Submitted(_, arrived, forced):
                time_s = arrived.arrival_s
                twin.scheduler.add(arrived, forced)
            case Aborted(_, number):
                twin.scheduler.abort(number)
            case Retargeted(_, layout, reason):
                twin.scheduler.set_target(layout, reason)
            case Stepped(_, _, collected_s, result):
                while steps and steps[0].planned_s < collected_s:
                    time_s = steps[0].planned_s
                    twin.clock.latch()
                    plan = twin.scheduler.schedule()
                    assert plan is not None
                    assert plan_digest(plan) == steps.popleft().digest, num_planned
                    twin.scheduler.prepare()
                    num_planned += 1
                time_s = collected_s
                twin.clock.latch()
                twin.scheduler.update(result)
    assert num_planned == len(kit.outbox.steps) > 50
