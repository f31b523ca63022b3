"""The ways in which a workload can be served: one layout throughout, a policy, and two yardsticks for the policy.

auto      the policy of the engine, switching live
restart   the same policy, but each change lets all requests end, stops for RESTART_S and starts again
oracle    the better of: the policy's best layout at every moment, where changes cost nothing and take no time,
          and the best fixed layout
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from splash.core.config import Objective
from splash.core.errors import ConfigError, closest
from splash.core.events import Event, EventSink, SwitchDone
from splash.layout.layouts import LAYOUTS, TP
from splash.sched.conviction import CAUTIOUS, RECKLESS
from splash.sched.policy import Decision, Load, Policy
from splash.sched.predictive import PredictivePolicy
from splash.sched.score import Targets as PolicyTargets
from splash.sim.deployment import SimDeployment
from splash.sim.executor import CostExecutor
from splash.sim.record import Recorder
from splash.sim.result import RunResult, Targets
from splash.sim.run import Arrivals, Simulation
from splash.sim.workload import NANOSECONDS, Workload

AUTO, ORACLE, RESTART = "auto", "oracle", "restart"
MODES = (*LAYOUTS, AUTO, ORACLE, RESTART)
ALL = "all"
RESTART_S = 45.0
"""From the last token of the old deployment to the first step of the new one."""
CHANGES = {
    RESTART: f"each lets all requests end, then stops for {RESTART_S:g} s",
    ORACLE: "each takes no time and moves nothing",
}
"""What a switch is, in modes where it is not made live."""
UNLIMITED = 1 << 60

NO_TARGETS = Targets()

Stopwatch = Callable[[], float]
"""Seconds of real time, from any start."""


@dataclass(frozen=True, slots=True)
class Aim:
    """What a policy optimises, and what a good request is."""

    objective: Objective = "throughput"
    targets: Targets = NO_TARGETS


ANY_SPEED = Aim()


class Relay:
    """Hands events on to `sinks`. The switch of a restart is told when service goes on, and from when it was decided:
    that all ended and nobody was served in between is what it costs."""

    def __init__(self, sinks: Iterable[EventSink]) -> None:
        self._sinks = tuple(sinks)
        self._decided: tuple[float, int] | None = None
        """(time, step) of a restart that is under way."""
        self._held: SwitchDone | None = None

    def __call__(self, event: Event) -> None:
        if self._decided is not None and self._held is None and isinstance(event, SwitchDone):
            self._held = event  # the wished one: it is the first to end
            return
        for sink in self._sinks:
            sink(event)

    def begin(self, now_s: float, step: int) -> None:
        """A restart has been decided."""
        self._decided = now_s, step

    def end(self, now_s: float) -> None:
        """Service goes on."""
        assert self._decided is not None
        (decided_s, decided_step), held = self._decided, self._held
        self._decided = self._held = None
        if held is None:
            return  # a target that does not fit was refused
        steps, took_s = held.step - decided_step, now_s - decided_s
        self(replace(held, t=now_s, steps=steps, seconds=took_s, max_boundary_s=RESTART_S))


class Restarting:
    """A policy whose changes, after the first step, are not made at once: `wish` is what it would change to."""

    name = "restart (cost model)"

    def __init__(self, policy: Policy) -> None:
        self.relay = Relay(())
        self._policy = policy
        self.period_steps = policy.period_steps
        self.calm_period_steps = policy.calm_period_steps
        self.wish: Decision | None = None

    def decide(self, load: Load) -> Decision | None:
        if self.wish is not None:
            return None
        decision = self._policy.decide(load)
        if load.step == 0:
            return decision
        if decision is not None and decision.target != load.target:
            self.wish = decision
        return None


def modes_named(text: str) -> tuple[str, ...]:
    """`tp,dp,auto`, with `all` for every one of them that is not named. ConfigError names what is not known, missing or
    there twice."""
    names = [part.strip() for part in text.split(",")]
    if not any(names):
        raise ConfigError(f"no layout is named; known: {', '.join(MODES)}, or all (--layout)")
    if "" in names:
        raise ConfigError(f"a layout is missing in '{text}'; give names with one comma between (--layout)")
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"'{text}' has {name} twice; name each layout once (--layout)")
        if name not in (*MODES, ALL):
            known = ", ".join(MODES)
            raise ConfigError(
                f"unknown layout '{name}'{closest(name, MODES)}; known: {known}, or all (--layout)"
            )
    return tuple(dict.fromkeys(mode for name in names for mode in (MODES if name == ALL else (name,))))


def simulate(
    deployment: SimDeployment,
    workload: Workload,
    mode: str,
    *,
    stopwatch: Stopwatch,
    aim: Aim = ANY_SPEED,
    sinks: Iterable[EventSink] = (),
) -> RunResult:
    """Serve `workload` in one of `MODES`; the oracle here is only its first half, see `better`."""
    recorder = Recorder()
    policy = policy_for(deployment, mode, aim)
    running = simulation(deployment, workload, mode, policy, sinks=(recorder, *sinks))
    begin_s = stopwatch()
    serve(running, policy)
    refused = tuple(f"{workload.place(index)}: {error.what}" for index, error in running.refused)
    return recorder.result(mode, targets=aim.targets, wall_s=stopwatch() - begin_s, refused=refused)


def serve(running: Simulation, policy: Policy | None) -> None:
    """Until everything that will arrive has been served, with the restarts that the policy wishes for."""
    while running.step():
        if isinstance(policy, Restarting) and policy.wish is not None:
            _restart(running, policy)
    running.scheduler.drain_events()


def better(free: RunResult, fixed: Sequence[RunResult]) -> RunResult:
    """The oracle: free switches, or the best fixed layout where that serves more tokens a second. Its switches take
    and move nothing, whatever the steps were in which they were made."""
    best = max((free, *fixed), key=lambda run: run.output_tokens_per_s)
    switches = tuple(replace(switch, seconds=0.0, bytes=0, steps=0) for switch in best.switches)
    return replace(best, layout=ORACLE, switches=switches)


def policy_for(
    deployment: SimDeployment, mode: str, aim: Aim = ANY_SPEED
) -> PredictivePolicy | Restarting | None:
    """What decides in a mode; None where nothing does."""
    if mode in LAYOUTS:
        return None
    predictive = PredictivePolicy(
        deployment.cost,
        deployment.limits(),
        caution=RECKLESS if mode == ORACLE else CAUTIOUS,
        objective=aim.objective,
        targets=PolicyTargets(aim.targets.ttft_s, aim.targets.tpot_s),
        free=mode == ORACLE,
        fixed_cost_s=RESTART_S if mode == RESTART else 0.0,
    )
    return Restarting(predictive) if mode == RESTART else predictive


def simulation(
    deployment: SimDeployment,
    workload: Workload,
    mode: str,
    policy: Policy | None,
    *,
    sinks: Iterable[EventSink],
    note: str = "simulated",
    switches: Sequence[tuple[int, str]] = (),
) -> Simulation:
    """A run that is ready to step, in the mode's layout or from tp on. `note` is what a viewer is told of it;
    `switches` are those of `Simulation`."""
    config = deployment.config
    if mode == ORACLE:
        config = replace(
            config, copy_share=1.0, copy_bandwidth=float(UNLIMITED), copy_bytes_per_step=UNLIMITED
        )
    target = mode if mode in LAYOUTS else TP.name
    if isinstance(policy, Restarting):
        policy.relay = Relay(sinks)
        sinks = (policy.relay,)
    return Simulation(
        scheduler=lambda clock, emit: deployment.scheduler(
            clock, emit, target=target, policy=policy, config=config
        ),
        executor=lambda clock: CostExecutor(
            deployment.cost,
            clock,
            token_bytes=deployment.memory.pages.token_bytes,
            free_copies=mode == ORACLE,
        ),
        source=Arrivals(workload, config.max_model_len),
        sinks=sinks,
        started=deployment.started(target, "fixed" if policy is None else policy.name, note),
        switches=switches,
    )


def _restart(simulation: Simulation, policy: Restarting) -> None:
    """Serve what runs to its end, admitting nobody; stop; go on in the wanted layout."""
    assert policy.wish is not None
    scheduler = simulation.scheduler
    policy.relay.begin(simulation.now_s, scheduler.next_step - 1)
    scheduler.admission.open = False
    while scheduler.running:
        simulation.step()
    wish = policy.wish
    scheduler.set_target(wish.target, wish.reason, striped_from=wish.striped_from, keep_policy=True)
    while scheduler.switching:
        simulation.step()
    simulation.pause(round(RESTART_S * NANOSECONDS))
    policy.relay.end(simulation.now_s)
    scheduler.admission.open = True
    policy.wish = None
