"""`splash run --hw NAME` where no such device is: the same view, tables and JSON of a simulation of it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from splash.cli.deploy_options import DeployOptions
from splash.cli.hardware import Elsewhere
from splash.cli.options import SPEED, Options
from splash.cli.output import json_text, output_console, target_of
from splash.core.errors import ConfigError, PortError, RequestError
from splash.core.events import Event, EventSink, RunFinished

if TYPE_CHECKING:
    from rich.console import Console

    from splash.cli.pace import Pace
    from splash.engine.report import RunReport
    from splash.sim.deployment import SimDeployment
    from splash.sim.run import Simulation
    from splash.sim.workload import Workload

FULL_SPEED = 10.0
"""Simulated seconds that a view counts for one of its own, where nothing waits for it."""


def simulate(options: Options, hardware: Elsewhere) -> int:
    """Says what it does, simulates, shows and reports; the exit code."""
    from splash.cli.pace import Pace
    from splash.cli.sim import described, tracing, workload_json
    from splash.engine.report import RunReport
    from splash.tui.live import is_live, open_view

    if options.require_device:
        raise PortError(f"{hardware.absence}; without --require-device it would be simulated")
    options.check_simulated()
    deployment = _deployed(options, hardware)
    workload = _workload(options, deployment)
    console = output_console(options.outputs)
    is_watched = is_live(console, plain=options.no_tui)
    speed = options.speed if options.speed is not None else SPEED if is_watched else 0.0
    for line in (_headline(hardware, deployment), described(workload)):
        console.print(line, soft_wrap=not console.is_terminal, markup=False)
    report = RunReport()
    with ExitStack() as files:
        target = files.enter_context(target_of(options.json_file, "--json"))
        trace = files.enter_context(tracing(options.trace, deployment))
        with open_view(console, plain=options.no_tui, speed=speed or FULL_SPEED) as view:
            watching = Watching(Pace(speed), (report.event, *trace, view.sink))
            note = f"simulated: no {hardware.name} device here"
            run, stopped = _watch(options, deployment, workload, note, watching)
        for request, error in run.refused:
            report.output(request, (), "", None, error.what)
        if target is not None:
            about = {"deployment": deployment.to_json(), "workload": workload_json(workload)}
            target.write(json_text({"simulated": True, **about, **report.to_json()}))
        _show(console, options, report, run, workload)
    if stopped is not None:
        raise stopped
    return RequestError.exit_code if run.refused else 0


def _headline(hardware: Elsewhere, deployment: SimDeployment) -> str:
    return f"{hardware.absence}: simulating {deployment.model} on {deployment.hardware}"


# ---- what is simulated


def _deployed(options: Options, hardware: Elsewhere) -> SimDeployment:
    """The options that were given, and for the others what is usual for the model."""
    from splash.sim.deployment import deploy

    asked = DeployOptions(
        model=options.model if "model" in options.given else None,
        hw=hardware.profile,
        ranks=options.ranks if "ranks" in options.given else None,
        memory_fraction=options.memory_fraction,
        dtype=options.dtype,
        kv_dtype=options.kv_dtype,
        request_tokens=options.request_tokens,
    )
    choice = asked.choice()
    settings = replace(asked.settings(choice), **_given(options, "token_budget", "max_running"))
    deployed = deploy(choice.model.name, choice.model.spec, choice.profile, settings)
    given = _given(options, "max_chunk", "max_model_len", "replicas", "copy_share")
    config = replace(deployed.config, **given)
    longest = min(config.max_model_len, deployed.spec.max_position)
    return replace(deployed, config=replace(config, max_model_len=longest))


def _given(options: Options, *names: str) -> dict[str, Any]:
    return {name: getattr(options, name) for name in names if name in options.given}


def _workload(options: Options, deployment: SimDeployment) -> Workload:
    from splash.engine.workload import DEFAULT, WORKLOADS, load_lengths
    from splash.sim.generators import GENERATORS
    from splash.sim.showcase import showcase

    name = DEFAULT if options.workload is None else options.workload
    if name in {*WORKLOADS} - {*GENERATORS, DEFAULT}:
        raise ConfigError(
            f"the workload '{name}' is of texts for ranks that compute, and {options.hw} is simulated here; known:"
            f" {', '.join((DEFAULT, *GENERATORS))}, or a file of one request a line, CSV or JSON (--workload)"
        )
    workload = (
        showcase(deployment, seed=options.seed) if name == DEFAULT else load_lengths(name, seed=options.seed)
    )
    return workload if options.max_tokens is None else workload.capped(options.max_tokens)


# ---- the run


def _watch(
    options: Options, deployment: SimDeployment, workload: Workload, note: str, watching: Watching
) -> tuple[Simulation, BaseException | None]:
    """Simulates before somebody's eyes. A signal, or a reader that goes away, ends it early, and is returned."""
    from splash.cli import Interrupted
    from splash.sim.modes import Aim, policy_for, simulation
    from splash.sim.result import Targets

    aim = Aim(options.objective, Targets(options.ttft, options.tpot))  # type: ignore[arg-type]
    run = simulation(
        deployment,
        workload,
        options.layout,
        policy_for(deployment, options.layout, aim),
        sinks=(watching.sink,),
        note=note,
        switches=options.switch,
    )
    stopped: BaseException | None = None
    try:
        while run.step():
            pass
        run.scheduler.drain_events()
    except (KeyboardInterrupt, Interrupted, BrokenPipeError) as early:
        stopped = early
    watching.end("done" if stopped is None else "interrupted")
    return run, stopped


class Watching:
    """Hands events on when they are due."""

    def __init__(self, pace: Pace, sinks: Sequence[EventSink]) -> None:
        self._pace = pace
        self._sinks = sinks
        self._t = 0.0

    def sink(self, event: Event) -> None:
        self._pace.wait(event.t)
        self._t = event.t
        for sink in self._sinks:
            sink(event)

    def end(self, outcome: str) -> None:
        """At the time of the last event that was seen."""
        self.sink(RunFinished(self._t, outcome, ""))


def _show(console: Console, options: Options, report: RunReport, run: Simulation, workload: Workload) -> None:
    from splash.cli.summary import show_refused, show_report, show_unreached

    show_report(console, report)
    show_refused(console, [(workload.place(request), error.what) for request, error in run.refused])
    show_unreached(console, report, options.switch)
