"""`splash sim`: a workload on hardware that need not be there, in one layout, under the policy, or in all of them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from splash.cli.deploy_options import DeployOptions, with_deployment
from splash.cli.names import OneOf
from splash.cli.numbers import POSITIVE, Whole
from splash.cli.output import json_text, output_console, target_of
from splash.core.errors import RequestError
from splash.core.events import EventSink
from splash.tui.units import plural

if TYPE_CHECKING:
    from rich.console import Console

    from splash.sim.deployment import SimDeployment
    from splash.sim.modes import Aim
    from splash.sim.result import RunResult
    from splash.sim.workload import Workload


class _Simulation(click.Command):
    """Knows the parameters of the named workloads: they are listed in the help, and none of them is an option."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Parameters of --workload, as in burst:rate=30,duration_s=60"):
            formatter.write_dl(
                [
                    (name, ", ".join(f"{key}={default}" for key, default in given.items()))
                    for name, given in _parameters().items()
                ]
            )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            word = error.option_name.lstrip("-").replace("-", "_")
            for name, given in _parameters().items():
                if key := next((key for key in (word, f"{word}_s") if key in given), None):
                    raise click.UsageError(
                        f"no such option: {error.option_name}; it is a parameter of a workload, as in"
                        f" --workload {name}:{key}={given[key]}",
                        ctx,
                    ) from None
            raise


def _parameters() -> dict[str, dict[str, Any]]:
    """Of each named workload, with their defaults."""
    from splash.sim.generators import GENERATORS

    return {name: {field.name: field.default for field in fields(kind)} for name, kind in GENERATORS.items()}


@click.command("sim", cls=_Simulation)
@with_deployment
@click.option(
    "--workload",
    metavar="NAME[:KEY=VALUE,…]|FILE",
    default="rl-drain",
    show_default=True,
    help="rl-drain, burst, phase-shift, long-mixed, steady, agentic, or a trace as published: Azure CSV, Mooncake"
    " JSONL, BurstGPT CSV, vLLM timed trace, CSV with arrival_s, prompt_tokens, output_tokens.",
)
@click.option("--rate", type=POSITIVE, help="Requests a second, in place of its own.")
@click.option(
    "--layout",
    metavar="NAMES",
    default="auto",
    show_default=True,
    help="Layouts, auto, oracle and restart, separated by commas, or all.",
)
@click.option(
    "--objective",
    type=OneOf("objective", ["throughput", "latency", "goodput"]),
    default="throughput",
    show_default=True,
    help="What the policy is after.",
)
@click.option(
    "--ttft",
    type=POSITIVE,
    help="Seconds to the first token of a good request.",
)
@click.option("--tpot", type=POSITIVE, help="Seconds a token of a good request.")
@click.option("--seed", type=Whole(min=0), default=0, show_default=True, help="Of a named workload.")
@click.option(
    "--json",
    "json_file",
    metavar="FILE",
    help="Write the figures; - is standard output, and nothing else goes there then.",
)
@click.option("--report", metavar="FILE", help="Write a page with charts (HTML); - as of --json.")
@click.option(
    "--trace",
    type=click.Path(path_type=Path, allow_dash=True),
    help="Write the events of the run for `splash replay`, of one layout only; - as of --json.",
)
def command(
    workload: str,
    rate: float | None,
    layout: str,
    objective: str,
    ttft: float | None,
    tpot: float | None,
    seed: int,
    json_file: str | None,
    report: str | None,
    trace: Path | None,
    **deployment: Any,
) -> None:
    """Serve a workload on a virtual clock, with the engine's own scheduler and policy.

    The first line says what is simulated. Without --layout the policy decides; `--layout all` compares it with every
    fixed layout, with free switches (oracle) and with restarts.
    """
    from splash.cli.sim_report import plotly_script, report_page
    from splash.cli.sim_table import show_results
    from splash.engine.workload import load_lengths
    from splash.sim.modes import Aim, modes_named
    from splash.sim.result import Targets, results_json

    modes = modes_named(layout)
    if trace is not None and len(modes) > 1:
        raise click.UsageError("--trace writes one run; choose one --layout")
    console = output_console({"--json": json_file, "--report": report, "--trace": trace})
    if objective == "goodput" and ttft is None and tpot is None:
        raise click.UsageError("--objective goodput needs --ttft or --tpot")
    if objective != "goodput" and (ttft is not None or tpot is not None):
        raise click.UsageError("--ttft and --tpot are the targets of --objective goodput")
    if report is not None:
        plotly_script()
    aim = Aim(objective, Targets(ttft, tpot))  # type: ignore[arg-type]
    requests = load_lengths(workload, seed=seed, rate=rate)
    deployed = DeployOptions(**deployment).deploy()
    title, note = f"{deployed.model}, {deployed.hardware}", described(requests)
    console.print(f"[bold]{title}, simulated[/bold]: {note}", soft_wrap=not console.is_terminal)
    with target_of(json_file, "--json") as figures, target_of(report, "--report") as charts:
        runs, stopped = _runs(console, deployed, requests, modes, aim, trace)
        if not any(run.num_requests for run in runs):
            raise RequestError(f"no request can be served: {runs[0].refused[0]}")
        if figures is not None:
            about = {"deployment": deployed.to_json(), "workload": workload_json(requests)}
            figures.write(json_text({**about, **results_json(runs)}))
        if charts is not None:
            charts.write(report_page(runs, title=f"{title}, simulated", note=note))
        show_results(console, runs)
        if stopped is not None:
            console.print(f"interrupted: {len(runs)} of {plural(len(modes), 'run')} came to their end")
    if stopped is not None:
        raise stopped


def described(workload: Workload) -> str:
    """Its size, and how it was made or read."""
    how = f", {workload.note}" if workload.note else ""
    return (
        f"{workload.name}, {plural(len(workload.arrivals), 'request')}, {workload.prompt_tokens:,} prompt and"
        f" {workload.output_tokens:,} output tokens{how}"
    )


def workload_json(workload: Workload) -> dict[str, Any]:
    return {
        "name": workload.name,
        "note": workload.note,
        "requests": len(workload.arrivals),
        "prompt_tokens": workload.prompt_tokens,
        "output_tokens": workload.output_tokens,
    }


def _runs(
    console: Console,
    deployment: SimDeployment,
    workload: Workload,
    modes: Sequence[str],
    aim: Aim,
    trace: Path | None,
) -> tuple[list[RunResult], BaseException | None]:
    """In the order asked for. The oracle is the better of free switches and of every fixed layout, which are run for
    it where they were not asked for. A signal ends it early, and is given back with what was finished, if anything."""
    from splash.cli import Interrupted
    from splash.layout.layouts import LAYOUTS
    from splash.sim.modes import ORACLE, better, simulate

    needed = [*modes, *(name for name in LAYOUTS if ORACLE in modes and name not in modes)]
    found: dict[str, RunResult] = {}
    try:
        for mode in needed:
            with (
                _progress(console, mode, len(workload.arrivals)) as bar,
                ended_trace(trace if mode in modes else None, deployment) as trace_sinks,
            ):
                found[mode] = simulate(
                    deployment,
                    workload,
                    mode,
                    aim=aim,
                    sinks=[bar, *trace_sinks],
                    stopwatch=time.perf_counter,
                )
    except (KeyboardInterrupt, Interrupted) as signalled:
        finished = [found[mode] for mode in modes if mode in found and mode != ORACLE]
        if not finished:
            raise
        return finished, signalled
    if ORACLE in modes:
        found[ORACLE] = better(found[ORACLE], [found[name] for name in LAYOUTS])
    return [found[mode] for mode in modes], None


@contextmanager
def _progress(console: Console, mode: str, total: int) -> Iterator[EventSink]:
    """A bar of finished requests, gone when it is full."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from splash.core.events import Event, RequestFinished

    columns = (TextColumn("{task.description:8}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(mode, total=total)

        def sink(event: Event) -> None:
            if isinstance(event, RequestFinished):
                progress.advance(task)

        yield sink


@contextmanager
def ended_trace(file: Path | None, deployment: SimDeployment) -> Iterator[list[EventSink]]:
    """As `tracing`, for a run that does not tell its own end: it is told here, at the time of the last event."""
    from splash.core.events import Event, RunFinished

    last, outcome = 0.0, "interrupted"

    def follow(event: Event) -> None:
        nonlocal last
        last = event.t

    with tracing(file, deployment) as sinks:
        try:
            yield [*sinks, follow]
            outcome = "done"
        finally:
            for sink in sinks:
                sink(RunFinished(last, outcome, ""))


@contextmanager
def tracing(file: Path | None, deployment: SimDeployment) -> Iterator[list[EventSink]]:
    """The sink that writes a trace, if one is wanted."""
    if file is None:
        yield []
        return
    import splash
    from splash.engine.trace import Header, TraceWriter

    with ExitStack() as files:
        writer = TraceWriter(file, Header(splash.__version__, deployment.model, asdict(deployment.config)))
        files.callback(writer.close)
        yield [writer.event]
