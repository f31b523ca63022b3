"""`splash run`: serve a checkpoint, switch layouts while requests run, and show what it cost."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import splash
from splash.cli.loading import LoadingBar
from splash.cli.options import Options, given_options, with_options
from splash.cli.output import json_text, output_console, target_of, tell
from splash.cli.unread import WhileRead
from splash.core.errors import RankFailure, RequestError, SplashError
from splash.core.params import SamplingParams
from splash.tui.units import plural

if TYPE_CHECKING:
    from rich.console import Console

    from splash.engine.deployment import Deployment
    from splash.engine.items import Item, Job
    from splash.engine.report import RunReport
    from splash.engine.streams import Completion
    from splash.engine.trace import TraceWriter
    from splash.engine.verify import Verifier

MAX_SHOWN = 10
"""Ties and differences that are listed; the JSON has all."""


def _jobs(options: Options, deployment: Deployment) -> list[Job]:
    """Every request of the run, checked before anything is started."""
    from splash.engine.items import Item, MadeUp, ids_for, ready
    from splash.engine.workload import DEFAULT, load_workload

    items = [Item(text) for text in options.prompt]
    items = items or load_workload(
        DEFAULT if options.workload is None else options.workload, seed=options.seed
    )
    check = _checker(deployment, verify=options.verify)

    def token_ids(prompt: str | MadeUp) -> tuple[int, ...]:
        if isinstance(prompt, MadeUp) or (deployment.text is None and not options.prompt):
            return ids_for(prompt, seed=options.seed, vocab_size=deployment.vocab_size)
        return _typed_prompt(prompt, deployment)

    jobs = []
    for number, item in enumerate(items):
        try:
            item = _capped(item, options.max_tokens)
            job = ready(
                item, token_ids=token_ids, defaults=options.sampling(), limit=deployment.max_model_len
            )
            check(job.prompt, job.params)
        except SplashError as error:
            place = item.place or (f"request {number}" if len(items) > 1 else "")
            raise RequestError(f"{place}: {error}" if place else str(error)) from None
        if options.verify and not job.params.greedy:
            raise click.UsageError(f"--verify compares greedy tokens, but request {number} has a temperature")
        jobs.append(job)
    return jobs


def _checker(deployment: Deployment, *, verify: bool) -> Callable[[Sequence[int], SamplingParams], None]:
    """Whether a request can be served at the start, and if asked for again to be verified: RequestError."""
    from splash.engine.verify import DTYPE, LAYOUT

    check = deployment.checker()
    if not verify:
        return check
    for option, dtype in (("--dtype", deployment.config.dtype), ("--kv-dtype", deployment.config.kv_dtype)):
        if dtype != DTYPE:
            raise click.UsageError(
                f"--verify tells ties from differences in {DTYPE} only, not in {dtype} ({option})"
            )
    check_again = deployment.fixed(LAYOUT).checker()

    def check_both(prompt: Sequence[int], params: SamplingParams) -> None:
        check(prompt, params)
        try:
            check_again(prompt, params)
        except RequestError as error:
            raise RequestError(f"--verify serves it in {LAYOUT} too: {error}") from None

    return check_both


def _capped(item: Item, max_tokens: int | None) -> Item:
    """`--max-tokens` is what a request without a number of its own gets, and a cap for the others."""
    if max_tokens is None:
        return item
    return replace(
        item, max_tokens=max_tokens if item.max_tokens is None else min(max_tokens, item.max_tokens)
    )


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
    """`stopped` is what ended the run early: a signal's exception, that of a closed pipe, or a rank's failure."""

    completions: list[Completion]
    stopped: BaseException | None = None

    @property
    def refused(self) -> list[Completion]:
        """Requests that were refused when they arrived: the target had changed."""
        return [done for done in self.completions if done.error is not None]


def _serve(
    deployment: Deployment,
    jobs: Sequence[Job],
    switches: Sequence[tuple[int, str]],
    watched: WhileRead,
    **engine: Any,
) -> _Outcome:
    """All requests through one engine. A signal, or a reader that goes away, ends it early, and what is left with
    `abort`; a rank that fails ends it too, and what is left without a reason."""
    from splash.cli import Interrupted
    from splash.engine.client import Engine
    from splash.engine.items import When

    stopped: BaseException | None = None
    with Engine(deployment, **engine) as running:
        streams = [running.submit(job.prompt, job.params, when=job.when) for job in jobs]
        for step, layout in switches:
            running.switch(layout, reason=f"--switch {step}:{layout}", when=When(step=step))
        watched.stop_by(running.stop)
        try:
            running.finish()
        except (KeyboardInterrupt, Interrupted) as signalled:
            with _without_ctrl_c():  # ending takes a moment: no second one meanwhile
                running.close()
            stopped = signalled
        except RankFailure as failure:
            stopped = failure
    return _Outcome([stream.outcome() for stream in streams], stopped or watched.error)


@contextmanager
def _without_ctrl_c() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _verify(deployment: Deployment, jobs: Sequence[Job], completions: Sequence[Completion]) -> Verifier:
    """Says so first: nothing is shown while it serves, which may take as long as the run did."""
    from splash.engine.verify import LAYOUT, Served, verify

    tell(
        f"verify: serving {plural(len(jobs), 'request')} again, in {LAYOUT} only, along the tokens served;"
        " it may take as long as the run did"
    )
    return verify(
        deployment,
        [
            Served(done.request, job.prompt, job.params, tuple(done.token_ids))
            for job, done in zip(jobs, completions, strict=True)
        ],
    )


@click.command("run")
@with_options
@click.pass_context
def command(ctx: click.Context, /, **options: Any) -> int:
    """Serve a checkpoint on ranks, and switch its layout while requests run.

    Without arguments: the demo model on two CPU ranks, under a load that makes the policy change the layout. With --hw
    and hardware that is not here: a simulation of it, in the same view.
    """
    return run(Options(**options, given=given_options(ctx)))


def run(options: Options) -> int:
    """Serves what has a device here, simulates what has not; the exit code."""
    from splash.cli.hardware import Elsewhere, named_hardware

    hardware = named_hardware(options.hw) if "hw" in options.given else None
    if isinstance(hardware, Elsewhere):
        from splash.cli.simulated import simulate

        return simulate(options, hardware)
    options.check_served()
    return serve(options)


def serve(options: Options) -> int:
    """Serves, shows and reports; the exit code."""
    from splash.cli import Interrupted
    from splash.engine.deployment import open_deployment
    from splash.engine.report import RunReport
    from splash.tui.live import open_view

    console = output_console(options.outputs)
    deployment = open_deployment(Path(options.model), options.engine_config())
    _show_notes(deployment)
    jobs = _jobs(options, deployment)
    report = RunReport()
    with ExitStack() as files:
        target = files.enter_context(target_of(options.json_file, "--json"))
        watched = WhileRead()
        trace = _open_trace(options.trace, options, watched, files)
        try:
            with LoadingBar(deployment.checkpoint.spec.num_layers, plain=options.no_tui) as bar:
                executor = deployment.launch(loaded=bar)
        except (KeyboardInterrupt, Interrupted):
            if target is not None:
                target.write(json_text(_unserved(jobs)))
            raise
        files.callback(executor.close)
        with open_view(console, plain=options.no_tui) as view:
            engine = {
                "sinks": (report.event, watched.guarded(view.sink)),
                "trace": trace,
                "executor": executor,
            }
            outcome = _serve(deployment, jobs, options.switch, watched, **engine)
        for done in outcome.completions:
            report.output(done.request, done.token_ids, done.text, done.finish_reason, done.error)
        data = report.to_json()
        if target is not None:
            target.draft(json_text(data))
        _show(console, options, report, outcome, has_text=deployment.text is not None)
        exit_code = 0
        if options.verify and outcome.stopped is None:
            verifier = _verify(deployment, jobs, outcome.completions)
            data["verify"] = _verify_json(verifier)
            exit_code = _show_verdict(console, verifier)
        if target is not None:
            target.write(json_text(data))
    if outcome.stopped is not None:
        raise outcome.stopped
    return RequestError.exit_code if outcome.refused else exit_code


def _unserved(jobs: Sequence[Job]) -> dict[str, Any]:
    """The JSON of a run that a signal ended while its ranks loaded: no request has arrived."""
    from splash.core.events import RunFinished
    from splash.engine.report import RunReport

    report = RunReport()
    for number in range(len(jobs)):
        report.output(number, (), "", None)
    report.event(RunFinished(0.0, "interrupted", "while ranks loaded"))
    return report.to_json()


def _open_trace(
    file: Path | None, options: Options, watched: WhileRead, files: ExitStack
) -> TraceWriter | None:
    from splash.engine.trace import Header, TraceWriter

    if file is None:
        return None
    header = Header(splash.__version__, options.model, asdict(options.engine_config()))
    writer = TraceWriter(file, header, unread=watched.end)
    files.callback(writer.close)
    return writer


# ---- what is shown


def _show_notes(deployment: Deployment) -> None:
    """What a user should know of the checkpoint."""
    for note in deployment.notes:
        tell(f"{deployment.model}: {note}")


def _show(
    console: Console,
    options: Options,
    report: RunReport,
    outcome: _Outcome,
    *,
    has_text: bool,
) -> None:
    """The texts of the prompts that were given, the tables, what was refused and what came to nothing."""
    from rich.text import Text

    from splash.cli.summary import show_refused, show_report, show_unreached

    for prompt, done in zip(options.prompt, outcome.completions, strict=False):
        answer = done.text if has_text else f" → {' '.join(map(str, done.token_ids))}"
        console.print(Text(prompt, style="bold").append(answer, style="not bold"), end="\n\n")
    show_report(console, report)
    show_refused(console, [(f"request {done.request}", str(done.error)) for done in outcome.refused])
    show_unreached(console, report, options.switch)


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
        f"verify: {plural(verifier.num_compared, 'token')} compared with layout {LAYOUT}:"
        f" {plural(len(verifier.ties), 'tie')} (logit gap below {TIE_GAP:g}), {plural(found, 'difference')}",
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
