"""Deployments as their presets say, and simulated runs with all their plans and events."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from splash.core.events import Event
from splash.sched.predictive import PredictivePolicy
from splash.sched.step import StepPlan
from splash.sim.deployment import SimDeployment, deploy
from splash.sim.executor import CostExecutor
from splash.sim.presets import choose
from splash.sim.run import Arrivals, Simulation
from splash.sim.workload import Workload


@cache
def deployed(model: str) -> SimDeployment:
    """As its preset says."""
    choice = choose(model, None)
    return deploy(model, choice.model.spec, choice.profile, choice.settings)


def tight(deployment: SimDeployment, pages: int) -> SimDeployment:
    """The same with that many KV pages on a rank, slots of one page, and checks after every step."""
    geometry = replace(deployment.memory.geometry, shard_bytes=1)
    small = replace(geometry, num_pages=geometry.null_page + 1 + pages)
    config = replace(deployment.config, check_invariants=True)
    return replace(deployment, config=config, memory=replace(deployment.memory, geometry=small))


def followed(
    deployment: SimDeployment,
    workload: Workload,
    *,
    jumps: bool,
    target: str = "tp",
    auto: bool = False,
    switches: tuple[tuple[int, str], ...] = (),
) -> tuple[dict[int, StepPlan], list[Event], Simulation]:
    """Plans by step, events and the simulation at its end."""
    plans: dict[int, StepPlan] = {}
    events: list[Event] = []

    def keep(plan: StepPlan) -> None:
        plans[plan.step] = plan

    policy = PredictivePolicy(deployment.cost, deployment.limits()) if auto else None
    simulation = Simulation(
        scheduler=lambda clock, emit: deployment.scheduler(clock, emit, target=target, policy=policy),
        executor=lambda clock: CostExecutor(
            deployment.cost, clock, token_bytes=deployment.memory.pages.token_bytes
        ),
        source=Arrivals(workload, deployment.config.max_model_len),
        sinks=[events.append],
        started=deployment.started(target, "test"),
        switches=switches,
        jumps=jumps,
        on_plan=keep,
    )
    while simulation.step():
        pass
    simulation.scheduler.drain_events()
    return plans, events, simulation
