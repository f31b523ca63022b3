"""A trace in the simulator: the same arrivals, times and results must give the same plans, step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from splash.core.errors import SplashError
from splash.core.events import EventSink, RunStarted
from splash.engine.trace import Aborted, Record, Retargeted, Stepped, Submitted, plan_digest
from splash.sched.scheduler import Scheduler
from splash.sched.step import Clock, StepPlan
from splash.sim.run import Simulation
from splash.sim.twin import RecordedArrivals, RecordedExecutor, RecordedStep


class TwinError(SplashError):
    """A plan differs from the one recorded, or the trace has what a simulation cannot repeat."""


def replay(records: Iterable[Record], scheduler: Callable[[Clock, EventSink], Scheduler]) -> int:
    """Simulates a run from its trace; returns how many steps were planned alike. TwinError at the first that is not, or
    if the simulated run is shorter. `scheduler` makes one as the run had it, with its policy."""
    records = list(records)
    if any(
        isinstance(record, Aborted) or (isinstance(record, Submitted) and record.forced) for record in records
    ):
        raise TwinError("the trace has aborts or forced tokens, which a simulation cannot repeat")
    steps = [record for record in records if isinstance(record, Stepped)]
    planned = 0

    def compare(plan: StepPlan) -> None:
        nonlocal planned
        if plan.step >= len(steps):
            raise TwinError(f"step {plan.step} was planned, the run ended after {len(steps)}")
        if plan_digest(plan) != steps[plan.step].digest:
            raise TwinError(f"step {plan.step} of {len(steps)} was planned otherwise than in the run")
        planned += 1

    simulation = Simulation(
        scheduler=scheduler,
        executor=lambda clock: RecordedExecutor(
            [RecordedStep(step.planned_s, step.collected_s, step.result) for step in steps], clock
        ),
        source=RecordedArrivals(record.request for record in records if isinstance(record, Submitted)),
        sinks=(),
        started=next(record for record in records if isinstance(record, RunStarted)),
        switches=[(record.step, record.layout) for record in records if isinstance(record, Retargeted)],
        jumps=False,
        on_plan=compare,
    )
    while simulation.step():
        pass
    if planned < len(steps):
        raise TwinError(f"{planned} steps were planned, the run had {len(steps)}")
    return planned
