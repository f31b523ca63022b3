"""The simulator is a twin of the engine: a real run's arrivals and times give its plans, one for one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from splash.core.config import EngineConfig, PolicyConfig, SchedulerConfig
from splash.core.events import EventSink, PolicyAsked, SwitchDone
from splash.core.params import SamplingParams
from splash.engine.client import Engine
from splash.engine.deployment import Deployment, open_deployment
from splash.engine.items import When
from splash.engine.trace import Header, Record, Stepped, Submitted, TraceWriter, read_trace
from splash.engine.twin import TwinError, replay
from splash.hal.inproc import InProcessBackend
from splash.sched.scheduler import Scheduler
from splash.sched.step import Clock
from tests.conftest import TinyMaker
from tests.tiny import random_prompt

torch.set_num_threads(1)

ARRIVALS = (
    (0.0, 40, 90),
    (0.0, 25, 90),
    *((0.15 + 0.003 * n, 20 + 7 * n, 50) for n in range(8)),
    (0.9, 60, 70),
)
"""Seconds, prompt and output tokens: few requests, many at once, and after a while few again."""


def deployed(folder: Path, policy: PolicyConfig) -> Deployment:
    scheduler = SchedulerConfig(
        token_budget=64, max_chunk=32, max_model_len=256, copy_share=0.0005, check_invariants=True
    )
    config = EngineConfig(ranks=2, layout="auto", scheduler=scheduler, policy=policy)
    return open_deployment(folder, config, InProcessBackend())


def recorded(deployment: Deployment, file: Path) -> list[Record]:
    """The trace of a run on ranks of threads, in real time; the first arrival apart, nothing waits for a step."""
    writer = TraceWriter(file, Header("0", "tiny", {}))
    with Engine(deployment, trace=writer) as engine:
        for n, (time_s, prompt, output) in enumerate(ARRIVALS):
            params = SamplingParams(max_tokens=output, ignore_eos=True, temperature=float(n % 2))
            engine.submit(random_prompt(prompt, seed=n), params, when=When(time_s=0.2 + time_s))
        engine.switch("cp", when=When(step=60))
        engine.finish()
    writer.close()
    return list(read_trace(file))


def planner(deployment: Deployment) -> Callable[[Clock, EventSink], Scheduler]:
    return lambda clock, emit: deployment.scheduler(clock=clock, emit=emit)


@pytest.mark.parametrize("kind", ["thresholds", "cost"])
def test_a_simulated_run_plans_what_the_real_one_did(tiny: TinyMaker, tmp_path: Path, kind: str) -> None:
    """Red when a plan depends on anything but requests, times and results, or the simulator's loop is not the engine's:
    arrivals between steps and while nothing runs, a policy, a user's switch, copies and flips are all in it."""
    deployment = deployed(tiny("deepseek_v3"), PolicyConfig(kind=kind))  # type: ignore[arg-type]
    records = recorded(deployment, tmp_path / "run.trace")
    assert sum(isinstance(record, SwitchDone) and record.outcome == "done" for record in records) >= 1
    assert any(isinstance(record, PolicyAsked) for record in records) == (kind == "cost")
    steps = sum(isinstance(record, Stepped) for record in records)
    assert replay(records, planner(deployment)) == steps > 80


def test_another_layout_or_other_times_give_other_plans(tiny: TinyMaker, tmp_path: Path) -> None:
    """Red when the comparison cannot fail: a twin in another layout, one request that comes later, and steps that take
    ten times as long, so that copies get other budgets, are all found out."""
    deployment = deployed(tiny("deepseek_v3"), PolicyConfig())
    records = recorded(deployment, tmp_path / "run.trace")
    with pytest.raises(TwinError, match="step 0 of"):
        replay(records, planner(deployment.fixed("dop")))
    with pytest.raises(TwinError, match="planned otherwise"):
        replay(map(later, records), planner(deployment))
    with pytest.raises(TwinError, match="planned otherwise"):
        replay(map(slower, records), planner(deployment))


def later(record: Record) -> Record:
    if not isinstance(record, Submitted) or record.request.id != 4:
        return record
    return replace(record, request=replace(record.request, arrival_s=record.request.arrival_s + 10.0))


def slower(record: Record) -> Record:
    if not isinstance(record, Stepped):
        return record
    result = record.result
    return replace(record, result=result._replace(ended_s=result.ended_s + 9 * result.forward_s))
