"""What the events of a run are folded into."""

from __future__ import annotations

import pytest

from splash.core import events as e
from splash.sim.record import Recorder
from splash.sim.result import Sample, Targets
from splash.sim.traces import load
from tests.sim.run_kit import deployed, followed, tight


def _started(target: str = "tp") -> e.RunStarted:
    return e.RunStarted(0.0, "m", "h", "", 2, target, "fixed", 16, 1, 9, 1)


def _step(t: float, *, decodes: int = 0, chunk: int = 0, tokens: int) -> e.StepDone:
    return e.StepDone(t, 0, 0.1, 0.0, decodes, chunk, {}, [], 0, tokens)


def _one_request(recorder: Recorder) -> None:
    """Request 7 arrives at 1 s, has its tokens at 2, 3 and 5 s."""
    for event in (
        _started(),
        e.RequestArrived(1.0, 7, 40, 3),
        e.FirstToken(2.0, 7, 1.0),
        _step(2.0, chunk=40, tokens=1),
        _step(3.0, decodes=1, tokens=1),
        e.RequestFinished(5.0, 7, "length", 3, 1.0, 1.5),
        _step(5.0, decodes=1, tokens=1),
    ):
        recorder(event)


def test_a_request_becomes_its_times() -> None:
    """Red when a time is taken from another event, or a gap from another step."""
    recorder = Recorder()
    _one_request(recorder)
    result = recorder.result("tp", targets=Targets(), wall_s=0.5)
    (request,) = result.requests
    assert (request.arrival_s, request.first_token_s, request.last_token_s) == (1.0, 2.0, 5.0)
    assert (request.prompt_tokens, request.output_tokens) == (40, 3)
    assert (result.itl.values, result.itl.counts) == ((1.0, 2.0), (1, 1))
    assert (result.steps, result.wall_s, result.layout) == (3, 0.5, "tp")


def test_the_shares_of_targets_are_of_time() -> None:
    """Red when a share is of steps, or the last target's time ends with its change."""
    recorder = Recorder()
    recorder(_started("tp"))
    recorder(e.TargetChanged(1.0, 3, "tp", "dop", "why", {}))
    _one_request_later(recorder)
    result = recorder.result("auto", targets=Targets(), wall_s=0.0)
    assert result.time_share == pytest.approx({"tp": 0.25, "dop": 0.75})


def _one_request_later(recorder: Recorder) -> None:
    recorder(e.RequestArrived(1.0, 7, 40, 1))
    recorder(e.FirstToken(4.0, 7, 3.0))
    recorder(e.RequestFinished(4.0, 7, "length", 1, 3.0, None))
    recorder(_step(4.0, chunk=40, tokens=1))


def test_a_switch_is_told_from_its_decision() -> None:
    """Red when a switch is listed at its end, or decisions and preemptions are not counted."""
    recorder = Recorder()
    _one_request(recorder)
    recorder(e.PolicyAsked(5.5, 9, "tp", "dp", "", {"tp": 1.0}, None))
    recorder(e.RequestPreempted(5.5, 7, 41))
    recorder(e.SwitchDone(6.0, 9, "tp", "dp", "why", "done", 4, 1, 900, 300, 2.0, 0.1))
    result = recorder.result("auto", targets=Targets(), wall_s=0.0)
    (switch,) = result.switches
    assert (switch.time_s, switch.seconds, switch.steps, switch.bytes) == (4.0, 2.0, 4, 900)
    assert (switch.old, switch.new, switch.reason, switch.outcome) == ("tp", "dp", "why", "done")
    assert (result.decisions, result.preemptions) == (1, 1)


def test_samples_leave_weights_out() -> None:
    """Red when a page of weights counts as KV, or the rate is not since the sample before."""
    recorder = Recorder()
    recorder(e.PoolSampled(2.0, [{"free": 8, "weight": 4}, {"free": 8, "weight": 4}], {}, 1, 0))
    _one_request(recorder)
    recorder(
        e.PoolSampled(5.0, [{"free": 2, "weight": 4, "tp": 6}, {"free": 8, "weight": 4}], {"tp": 2}, 0, 0)
    )
    result = recorder.result("tp", targets=Targets(), wall_s=0.0)
    assert result.samples == (Sample(2.0, "", 0, 1, 0.0, 0.0), Sample(5.0, "tp", 2, 0, 6 / 16, 1.0))


@pytest.mark.parametrize("jumps", [False, True])
def test_the_gaps_are_those_of_all_tokens(jumps: bool) -> None:
    """Red when the gap that a preemption leaves is not among the ITL: one gap fewer a preemption, and shorter together
    than the requests took from their first tokens to their last."""
    workload = load("rl-drain:prompts=4,samples=4,cap=600", seed=1)
    _, events, _ = followed(tight(deployed("deepseek-v3.2"), 40), workload, jumps=jumps)
    recorder = Recorder()
    for event in events:
        recorder(event)
    result = recorder.result("tp", targets=Targets(), wall_s=0.0)
    assert any(isinstance(event, e.RequestResumed) for event in events), "memory was not short"
    assert sum(result.itl.counts) == sum(r.output_tokens - 1 for r in result.requests)
    took_s = sum(r.last_token_s - r.first_token_s for r in result.requests)
    assert result.itl.mean * sum(result.itl.counts) == pytest.approx(took_s)
