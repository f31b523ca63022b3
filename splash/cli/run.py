"""`splash run`: serve a checkpoint, switch layouts while requests run, and show what it cost."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

import splash
from splash.core.config import EngineConfig, SchedulerConfig
from splash.core.errors import ConfigError, RequestError, SplashError
from splash.core.params import SamplingParams
from splash.layout.layouts import LAYOUTS, layout_named

if TYPE_CHECKING:
    from rich.console import Console

    from splash.engine.client import Completion
    from splash.engine.deployment import Deployment
    from splash.engine.report import RunReport
    from splash.engine.trace import TraceWriter
    from splash.engine.verify import Verifier
    from splash.engine.workload import Item, Job

DEMO = Path(splash.__file__).parent / "_demo"
DEFAULT_MAX_TOKENS = 128
ENGINE = EngineConfig()
SCHEDULER = SchedulerConfig()
AUTO = "auto"
SWITCH_INTERVAL_S = 0.0005
"""How long the thread that draws may keep the loop from the next step."""
MAX_SHOWN = 10
"""Ties and differences that are listed; the JSON has all."""


class Switch(click.ParamType):
    """STEP:LAYOUT."""

    name = "STEP:LAYOUT"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, str]:
        step, _, layout = str(value).partition(":")
        if not step.isdecimal() or not layout:
            self.fail(f"'{value}' is not STEP:LAYOUT, e.g. 40:dp", param, ctx)
        if layout not in LAYOUTS:
            self.fail(f"unknown layout '{layout}'; known: {', '.join(LAYOUTS)}", param, ctx)
        return int(step), layout


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for, parsed; field names are those of the options."""

    model: Path
    hw: str
    ranks: int
    layout: str
    prompt: tuple[str, ...]
    workload: str | None
    max_tokens: int | None
    switch: tuple[tuple[int, str], ...]
    verify: bool
    no_tui: bool
    json_file: str | None
    trace: Path | None
    dtype: str | None
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    ignore_eos: bool
    kv_pages: int | None
    pool_mib: int | None
    replicas: str
    token_budget: int
    max_chunk: int
    max_running: int
    max_model_len: int
    copy_share: float

    def __post_init__(self) -> None:
        if self.prompt and self.workload:
            raise click.UsageError("--prompt and --workload exclude each other")
        if self.layout != AUTO:
            layout_named(self.layout)
        if self.verify and self.temperature:
            raise click.UsageError("--verify compares greedy tokens; leave out --temperature")

    def engine_config(self) -> EngineConfig:
        scheduler = SchedulerConfig(
            max_running=self.max_running,
            token_budget=self.token_budget,
            max_chunk=self.max_chunk,
            max_model_len=self.max_model_len,
            replicas=self.replicas,  # type: ignore[arg-type]
            copy_share=self.copy_share,
        )
        return EngineConfig(
            ranks=self.ranks,
            backend=self.hw,
            dtype=self.dtype,
            layout=self.layout,
            kv_pages=self.kv_pages,
            pool_mib=self.pool_mib,
            seed=self.seed,
            scheduler=scheduler,
        )

    def sampling(self) -> SamplingParams:
        """What a request gets that does not say otherwise."""
        return SamplingParams(
            max_tokens=self.max_tokens or DEFAULT_MAX_TOKENS,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            ignore_eos=self.ignore_eos,
        )


def _jobs(options: Options, deployment: Deployment) -> list[Job]:
    """Every request of the run, checked before anything is started."""
    from splash.engine.workload import Item, ids_for, load_workload, ready

    items = [Item(text) for text in options.prompt]
    items = items or load_workload(options.workload or "default", seed=options.seed)
    check = deployment.checker()

    def token_ids(text: str) -> tuple[int, ...]:
        if deployment.text is None and not options.prompt:
            return ids_for(text, seed=options.seed, vocab_size=deployment.vocab_size)
        return _typed_prompt(text, deployment)

    jobs = []
    for number, item in enumerate(items):
        try:
            item = _capped(item, options.max_tokens)
            job = ready(
                item, token_ids=token_ids, defaults=options.sampling(), limit=deployment.max_model_len
            )
            check(job.prompt, job.params)
        except SplashError as error:
            raise RequestError(f"request {number}: {error}" if len(items) > 1 else str(error)) from None
        if options.verify and not job.params.greedy:
            raise click.UsageError(f"--verify compares greedy tokens, but request {number} has a temperature")
        jobs.append(job)
    return jobs


def _capped(item: Item, max_tokens: int | None) -> Item:
    """`--max-tokens` is what a request without a number of its own gets, and a cap for the others."""
    if max_tokens is None:
        return item
    return replace(item, max_tokens=min(max_tokens, item.max_tokens or max_tokens))


def _typed_prompt(text: str, deployment: Deployment) -> tuple[int, ...]:
    """Text, or for a checkpoint without a tokenizer numbers."""
    if deployment.text is not None:
        return deployment.token_ids(text)
    words = text.replace(",", " ").split()
    if not words or not all(word.isdecimal() for word in words):
        raise RequestError(
            f"{deployment.checkpoint.folder} has no tokenizer.json:"
            f" give --prompt as token ids, e.g. '12 7 301', not {text!r}"
        )
    return tuple(map(int, words))


# ---- the run


@dataclass(slots=True)
class _Outcome:
    """`stopped` is what ended the run early: a signal's exception."""

    completions: list[Completion]
    stopped: BaseException | None = None


def _serve(
    deployment: Deployment, jobs: Sequence[Job], switches: Sequence[tuple[int, str]], **engine: Any
) -> _Outcome:
    """All requests through one engine. A signal ends it early, and what is left with `abort`."""
    from splash.cli import Interrupted
    from splash.engine.client import Engine
    from splash.engine.workload import When

    stopped: BaseException | None = None
    with Engine(deployment, **engine) as running:
        streams = [running.submit(job.prompt, job.params, when=job.when) for job in jobs]
        for step, layout in switches:
            running.switch(layout, reason=f"--switch {step}:{layout}", when=When(step=step))
        try:
            running.finish()
        except (KeyboardInterrupt, Interrupted) as signalled:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # ending takes a moment: no second one meanwhile
            running.close()
            stopped = signalled
    return _Outcome([stream.result() for stream in streams], stopped)


def _verify(
    console: Console, deployment: Deployment, jobs: Sequence[Job], completions: Sequence[Completion]
) -> Verifier:
    from splash.engine.verify import LAYOUT, Served, verify

    console.print(
        f"verify: the same requests again, in {LAYOUT} only, along the tokens served", soft_wrap=True
    )
    return verify(
        deployment,
        [
            Served(job.prompt, job.params, tuple(done.token_ids))
            for job, done in zip(jobs, completions, strict=True)
        ],
    )


@click.command("run")
@click.option(
    "--model",
    type=click.Path(path_type=Path),
    default=DEMO,
    help="Checkpoint folder.  [default: the demo model]",
)
@click.option("--hw", metavar="NAME", default=ENGINE.backend, show_default=True, help="Name of a port.")
@click.option("--ranks", type=click.IntRange(min=1), default=ENGINE.ranks, show_default=True)
@click.option(
    "--layout",
    metavar="NAME",
    default=ENGINE.layout,
    show_default=True,
    help=f"{', '.join(LAYOUTS)}, or auto: a policy decides while requests run.",
)
@click.option("--prompt", metavar="TEXT", multiple=True, help="Serve this prompt; repeat for more.")
@click.option(
    "--workload",
    metavar="NAME|FILE",
    help="default, burst, long, steady, or a file with a JSON object a line: prompt or token_ids, and optionally"
    " max_tokens, arrival_s, arrival_step and sampling parameters.",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(min=1),
    help=f"Output tokens of a request that does not say, a cap for one that does.  [default: {DEFAULT_MAX_TOKENS}]",
)
@click.option(
    "--switch",
    type=Switch(),
    multiple=True,
    help="Make the layout the target at that step; repeat for more. The policy has no say afterwards.",
)
@click.option(
    "--verify",
    is_flag=True,
    help="Serve the same requests again in tp and compare every token; exit 1 at a difference.",
)
@click.option("--no-tui", is_flag=True, help="Plain lines instead of the live view.")
@click.option(
    "--json",
    "json_file",
    metavar="FILE",
    help="Write requests, switches and figures; - is standard output, and nothing else goes there then.",
)
@click.option(
    "--trace", type=click.Path(path_type=Path, dir_okay=False), help="Write a trace for `splash replay`."
)
@click.option(
    "--dtype", type=click.Choice(["float32", "bfloat16"]), help="Compute and KV type.  [default: the port's]"
)
@click.option("--temperature", type=float, default=0.0, show_default=True, help="0 is greedy.")
@click.option("--top-k", type=int, default=0, help="Keep the k most likely tokens; 0 keeps all.")
@click.option(
    "--top-p", type=float, default=1.0, help="Keep the likeliest tokens that make up this probability."
)
@click.option("--min-p", type=float, default=0.0, help="Keep tokens this likely, relative to the best.")
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=ENGINE.seed,
    show_default=True,
    help="Of the sampling and of the named workloads.",
)
@click.option("--ignore-eos", is_flag=True, help="Go on to max-tokens whatever is sampled.")
@click.option("--kv-pages", type=click.IntRange(min=1), help="KV pages per rank beside the weight slots.")
@click.option(
    "--pool-mib", type=click.IntRange(min=1), help="Size of each rank's pool, weight slots included."
)
@click.option(
    "--replicas",
    type=click.Choice(["keep", "drop"]),
    default=SCHEDULER.replicas,
    show_default=True,
    help="Weight replicas that no request needs: keep them warm, or give their room to KV.",
)
@click.option(
    "--token-budget",
    type=click.IntRange(min=1),
    default=SCHEDULER.token_budget,
    show_default=True,
    help="Rows of a step.",
)
@click.option(
    "--max-chunk",
    type=click.IntRange(min=1),
    default=SCHEDULER.max_chunk,
    show_default=True,
    help="Rows of one prompt chunk.",
)
@click.option(
    "--max-running",
    type=click.IntRange(min=1),
    default=SCHEDULER.max_running,
    show_default=True,
    help="Requests that run at once.",
)
@click.option(
    "--max-model-len",
    type=click.IntRange(min=2),
    default=SCHEDULER.max_model_len,
    show_default=True,
    help="Prompt and output tokens of a request together, at most.",
)
@click.option(
    "--copy-share",
    type=float,
    default=SCHEDULER.copy_share,
    show_default=True,
    help="Share of a step's time that background copies may take.",
)
def command(**options: Any) -> int:
    """Serve a checkpoint on ranks, and switch its layout while requests run.

    Without arguments: the demo model on two CPU ranks, under a load that makes the policy change the layout.
    """
    return run(Options(**options))


def run(options: Options) -> int:
    """Serves, shows and reports; the exit code."""
    from rich.console import Console

    from splash.engine.deployment import open_deployment
    from splash.engine.report import RunReport
    from splash.tui.live import open_view

    sys.setswitchinterval(SWITCH_INTERVAL_S)
    console = Console(stderr=options.json_file == "-")
    deployment = open_deployment(options.model, options.engine_config())
    jobs = _jobs(options, deployment)
    report = RunReport()
    with ExitStack() as files:
        json_out = _open_json(options.json_file, files)
        trace = _open_trace(options.trace, options, files)
        with open_view(console, plain=options.no_tui) as view:
            sinks = (report.event, view.sink)
            outcome = _serve(deployment, jobs, options.switch, sinks=sinks, trace=trace)
        for done in outcome.completions:
            report.output(done.request, done.token_ids, done.text, done.finish_reason)
        _show(console, options, report, outcome.completions, has_text=deployment.text is not None)
        data = report.to_json()
        exit_code = 0
        if options.verify and outcome.stopped is None:
            verifier = _verify(console, deployment, jobs, outcome.completions)
            data["verify"] = _verify_json(verifier)
            exit_code = _show_verdict(console, verifier)
        if json_out is not None:
            json.dump(data, json_out, indent=1)
            json_out.write("\n")
    if outcome.stopped is not None:
        raise outcome.stopped
    return exit_code


def _open_json(name: str | None, files: ExitStack) -> TextIO | None:
    """Opened before anything runs: an hour's figures shall not be lost to a typing error."""
    if name is None or name == "-":
        return None if name is None else sys.stdout
    try:
        return files.enter_context(Path(name).open("w", encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot write {name}: {error.strerror} (--json)") from None


def _open_trace(file: Path | None, options: Options, files: ExitStack) -> TraceWriter | None:
    from splash.engine.trace import Header, TraceWriter

    if file is None:
        return None
    writer = TraceWriter(
        file, Header(splash.__version__, str(options.model), asdict(options.engine_config()))
    )
    files.callback(writer.close)
    return writer


# ---- what is shown


def _show(
    console: Console,
    options: Options,
    report: RunReport,
    completions: Sequence[Completion],
    *,
    has_text: bool,
) -> None:
    """The texts of the prompts that were given, the tables, and switches that came to nothing."""
    from rich.text import Text

    from splash.cli.summary import show_report

    for prompt, done in zip(options.prompt, completions, strict=False):
        answer = done.text if has_text else f" → {' '.join(map(str, done.token_ids))}"
        console.print(Text(prompt, style="bold").append(answer, style="not bold"), end="\n\n")
    show_report(console, report)
    last = report.steps[-1].step if report.steps else 0
    for step, layout in options.switch:
        if step > last:
            console.print(f"--switch {step}:{layout} came to nothing: the last step was {last}")


def _show_verdict(console: Console, verifier: Verifier) -> int:
    """Lists ties and differences; the exit code."""
    from splash.engine.verify import LAYOUT, TIE_GAP

    found = len(verifier.differences)
    for kind, differences in (("tie", verifier.ties), ("DIFFERENCE", verifier.differences)):
        for difference in differences[:MAX_SHOWN]:
            console.print(f"  {kind}: {difference}", highlight=False, soft_wrap=True)
        if len(differences) > MAX_SHOWN:
            console.print(f"  and {len(differences) - MAX_SHOWN} more", highlight=False)
    console.print(
        f"verify: {verifier.num_compared} tokens compared with layout {LAYOUT}: {len(verifier.ties)} ties"
        f" (logit gap below {TIE_GAP:g}), {found} differences",
        style="bold red" if found or verifier.missing else "bold green",
        highlight=False,
        soft_wrap=True,
    )
    if verifier.missing:
        console.print(f"verify: {verifier.missing} tokens were not compared", style="bold red")
    return 1 if found or verifier.missing else 0


def _verify_json(verifier: Verifier) -> dict[str, Any]:
    from splash.engine.verify import LAYOUT, TIE_GAP

    return {
        "layout": LAYOUT,
        "tokens": verifier.num_compared,
        "missing": verifier.missing,
        "tie_gap": TIE_GAP,
        "ties": [asdict(difference) for difference in verifier.ties],
        "differences": [asdict(difference) for difference in verifier.differences],
    }
