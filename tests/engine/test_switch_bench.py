"""What `bench.switch` takes for steps beside which copies ran."""

from __future__ import annotations

from bench.switch import Progress
from splash.core.params import SamplingParams
from splash.engine.client import Engine
from splash.sched.step import StepPlan, StepResult
from tests.engine.engine_kit import MirrorDeployment


def test_copies_ran_beside_the_steps_whose_results_acknowledge_them() -> None:
    """Red when the steps that are counted as beside copies are those in which their arrival was told."""
    progress, acknowledging = Progress(), list[int]()

    def watch(plan: StepPlan, result: StepResult) -> None:
        if result.acks:
            acknowledging.append(result.step)

    deployment = MirrorDeployment(pace_s=0.002)
    with Engine(deployment, sinks=(progress,), on_step=watch) as engine:  # type: ignore[arg-type]
        stream = engine.submit(tuple(range(1, 60)), SamplingParams(max_tokens=200, ignore_eos=True))
        progress.wait_for_steps(8, rows=1)
        for number, layout in enumerate(("dcp", "tp", "dop", "dcp", "tp")):
            engine.switch(layout)
            progress.wait(lambda number=number: len(progress.switches) > number)
        stream.abort()
    assert len(acknowledging) > 1
    assert progress.copying == acknowledging
