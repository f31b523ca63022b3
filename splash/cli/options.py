"""What `splash run` can be asked for: its options, parsed and checked against each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import click

from splash.cli.names import OneOf
from splash.cli.numbers import FROM_ZERO, POSITIVE, SHARE, Count, Finite, Whole
from splash.core.config import DEMO, EngineConfig, PolicyConfig, SchedulerConfig
from splash.core.params import SamplingParams
from splash.layout.layouts import LAYOUTS
from splash.sim.settings import COPY_SHARE, Settings

DEFAULT_MAX_TOKENS = 128
ENGINE = EngineConfig()
SCHEDULER = SchedulerConfig()
POLICY = PolicyConfig()
SIMULATED = Settings()
AUTO = "auto"

SPEED = 4.0
"""Simulated seconds in a second of the live view."""
COMPUTE_TYPES = ("float32", "bfloat16")
STORED_TYPES = ("fp8_block", "int8")
"""Of weights; beside the compute types, on simulated hardware."""
SIMULATED_ONLY = frozenset({"speed", "memory_fraction", "request_tokens"})
_NO_TOKEN = "a simulation computes no token"
_NO_POOL = "the memory of simulated hardware is set by --memory-fraction"
SERVED_ONLY = {
    "prompt": f"{_NO_TOKEN}, name a --workload",
    "verify": _NO_TOKEN,
    "temperature": _NO_TOKEN,
    "top_k": _NO_TOKEN,
    "top_p": _NO_TOKEN,
    "min_p": _NO_TOKEN,
    "ignore_eos": f"{_NO_TOKEN}, and every request goes on to its length",
    "kv_pages": _NO_POOL,
    "pool_mib": _NO_POOL,
}
"""Options that need a device, and why."""


def _default(served: object, simulated: object) -> str:
    """What help says of an option whose default depends on whether there is a device."""
    return f"  [default: {served}; simulated: {simulated}]"


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


def _one_a_step(
    ctx: click.Context, param: click.Parameter, value: tuple[tuple[int, str], ...]
) -> tuple[tuple[int, str], ...]:
    """Of two switches at one step only the last would be seen."""
    for (step, first), (other, second) in pairwise(sorted(value, key=lambda switch: switch[0])):
        if step == other:
            raise click.BadParameter(f"{step}:{first} and {other}:{second} are at one step", ctx, param)
    return value


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for, parsed; field names are those of the options."""

    model: str
    hw: str
    require_device: bool
    ranks: int
    layout: str
    policy: str
    objective: str
    ttft: float | None
    tpot: float | None
    prompt: tuple[str, ...]
    workload: str | None
    max_tokens: int | None
    switch: tuple[tuple[int, str], ...]
    verify: bool
    no_tui: bool
    json_file: str | None
    trace: Path | None
    dtype: str | None
    kv_dtype: str | None
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
    speed: float | None
    memory_fraction: float | None
    request_tokens: int | None
    given: frozenset[str]
    """Names of the options that the command line has; the others are at their defaults."""

    def __post_init__(self) -> None:
        if self.prompt and self.workload:
            raise click.UsageError("--prompt and --workload exclude each other")
        if self.layout not in (*LAYOUTS, AUTO):
            known = ", ".join((*LAYOUTS, AUTO))
            raise click.UsageError(f"unknown layout '{self.layout}'; known: {known} (--layout)")
        if self.objective == "goodput" and self.ttft is None and self.tpot is None:
            raise click.UsageError("--objective goodput needs --ttft or --tpot")
        if self.objective != "goodput" and (self.ttft is not None or self.tpot is not None):
            raise click.UsageError("--ttft and --tpot are the targets of --objective goodput")
        if self.verify and self.temperature:
            raise click.UsageError("--verify compares greedy tokens; leave out --temperature")

    @property
    def outputs(self) -> dict[str, str | Path | None]:
        """What each option writes."""
        return {"--json": self.json_file, "--trace": self.trace}

    def check_served(self) -> None:
        """UsageError for what only a simulation understands."""
        from splash.spec.known import known_models

        if self.model in known_models() and not Path(self.model).exists():
            from splash.sim.presets import preset

            raise click.UsageError(
                f"{self.model} is known by name, but its weights are not here: --hw {preset(self.model).hw} simulates"
                " it, --model DIR serves a checkpoint's folder"
            )
        for name in sorted(self.given & SIMULATED_ONLY):
            raise click.UsageError(
                f"{flag(name)} is for simulated hardware; {self.hw} has a device here (--hw)"
            )
        if self.dtype not in (None, *COMPUTE_TYPES):
            raise click.UsageError(
                f"--dtype {self.dtype} is for simulated hardware; here: {', '.join(COMPUTE_TYPES)}"
            )

    def check_simulated(self) -> None:
        """UsageError for what a simulation cannot do: it computes no token."""
        if "policy" in self.given and self.policy != "cost":
            raise click.UsageError(
                f"a simulation decides by predicted times, not by {self.policy} (--policy)"
            )
        for name in sorted(self.given & SERVED_ONLY.keys()):
            raise click.UsageError(
                f"{flag(name)} needs a device, and {self.hw} is simulated here: {SERVED_ONLY[name]}"
            )

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
            kv_dtype=self.kv_dtype,
            layout=self.layout,
            kv_pages=self.kv_pages,
            pool_mib=self.pool_mib,
            seed=self.seed,
            scheduler=scheduler,
            policy=PolicyConfig(
                kind=self.policy,  # type: ignore[arg-type]
                objective=self.objective,  # type: ignore[arg-type]
                ttft_s=self.ttft,
                tpot_s=self.tpot,
            ),
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


OPTIONS = (
    click.option(
        "--model",
        metavar="DIR|NAME",
        default=str(DEMO),
        help="Checkpoint folder; on simulated hardware also a model by name."
        + _default("the demo model", "the hardware's usual one"),
    ),
    click.option(
        "--hw",
        metavar="NAME|FILE",
        default=ENGINE.backend,
        show_default=True,
        help="Name of a port; where it has no device here, a hardware profile, which is simulated.",
    ),
    click.option("--require-device", is_flag=True, help="Refuse to simulate."),
    click.option(
        "--ranks",
        type=Count(min=1),
        default=ENGINE.ranks,
        help="Ranks of the deployment." + _default(ENGINE.ranks, f"{SIMULATED.ranks}, or fewer"),
    ),
    click.option(
        "--layout",
        metavar="NAME",
        default=ENGINE.layout,
        show_default=True,
        help=f"{', '.join(LAYOUTS)}, or auto: a policy decides while requests run.",
    ),
    click.option(
        "--policy",
        type=OneOf("policy", ["cost", "thresholds"]),
        default=POLICY.kind,
        help="How auto decides: by times predicted on the port's hardware profile, or by the load alone."
        + _default(POLICY.kind, "cost"),
    ),
    click.option(
        "--objective",
        type=OneOf("objective", ["throughput", "latency", "goodput"]),
        default=POLICY.objective,
        show_default=True,
        help="What the cost policy is after.",
    ),
    click.option(
        "--ttft",
        type=POSITIVE,
        help="Seconds to the first token of a good request (--objective goodput).",
    ),
    click.option("--tpot", type=POSITIVE, help="Seconds a token of a good request (--objective goodput)."),
    click.option("--prompt", metavar="TEXT", multiple=True, help="Serve this prompt; repeat for more."),
    click.option(
        "--workload",
        metavar="NAME|FILE",
        help="default, burst, long, steady, or a file with a JSON object a line: prompt or token_ids, and optionally"
        " max_tokens, arrival_s, arrival_step and sampling parameters; or a trace of lengths, as `splash sim` takes."
        " Simulated: default (chats, long prompts and rollouts) or what `splash sim` takes.  [default: default]",
    ),
    click.option(
        "--max-tokens",
        type=Count(min=1),
        help="Output tokens of a request that does not say, a cap for one that does; a request also ends where"
        " its context is full, with `length`." + _default(DEFAULT_MAX_TOKENS, "no cap"),
    ),
    click.option(
        "--switch",
        type=Switch(),
        multiple=True,
        callback=_one_a_step,
        help="Make the layout the target at that step; repeat for more. The policy has no say afterwards.",
    ),
    click.option(
        "--verify",
        is_flag=True,
        help="Serve the same requests again in tp and compare every token; exit 1 at a difference.",
    ),
    click.option("--no-tui", is_flag=True, help="Plain lines instead of the live view."),
    click.option(
        "--json",
        "json_file",
        metavar="FILE",
        help="Write requests, switches and figures; - is standard output, and nothing else goes there then.",
    ),
    click.option(
        "--trace",
        type=click.Path(path_type=Path, allow_dash=True),
        help="Write a trace for `splash replay`; - as of --json.",
    ),
    click.option(
        "--dtype",
        type=OneOf("type", [*COMPUTE_TYPES, *STORED_TYPES]),
        help="Compute type; simulated: how weights are stored." + _default("the port's", "the model's"),
    ),
    click.option(
        "--kv-dtype",
        type=OneOf("KV type", ["float32", "bfloat16", "fp8"]),
        help="Type in which KV is stored; fp8 is for latent attention."
        + _default("the compute type", "the model's"),
    ),
    click.option(
        "--temperature",
        type=FROM_ZERO,
        default=0.0,
        show_default=True,
        help="0 is greedy, whatever generation_config.json says.",
    ),
    click.option("--top-k", type=Whole(min=0), default=0, help="Keep the k most likely tokens; 0 keeps all."),
    click.option(
        "--top-p", type=SHARE, default=1.0, help="Keep the likeliest tokens that make up this probability."
    ),
    click.option(
        "--min-p",
        type=Finite(min=0, max=1),
        default=0.0,
        help="Keep tokens this likely, relative to the best.",
    ),
    click.option(
        "--seed",
        type=Whole(min=0),
        default=ENGINE.seed,
        show_default=True,
        help="Of the sampling and of the named workloads.",
    ),
    click.option("--ignore-eos", is_flag=True, help="Go on to max-tokens whatever is sampled."),
    click.option("--kv-pages", type=Count(min=1), help="KV pages per rank beside the weight slots."),
    click.option("--pool-mib", type=Count(min=1), help="Size of each rank's pool, weight slots included."),
    click.option(
        "--replicas",
        type=OneOf("setting", ["keep", "drop"]),
        default=SCHEDULER.replicas,
        show_default=True,
        help="Weight replicas that no request needs: keep them warm, or give their room to KV.",
    ),
    click.option(
        "--token-budget",
        type=Count(min=1),
        default=SCHEDULER.token_budget,
        help="Rows of a step." + _default(SCHEDULER.token_budget, SIMULATED.token_budget),
    ),
    click.option(
        "--max-chunk",
        type=Count(min=1),
        default=SCHEDULER.max_chunk,
        help="Rows of one prompt chunk." + _default(SCHEDULER.max_chunk, "the token budget"),
    ),
    click.option(
        "--max-running",
        type=Count(min=1),
        default=SCHEDULER.max_running,
        help="Requests that run at once." + _default(SCHEDULER.max_running, SIMULATED.max_running),
    ),
    click.option(
        "--max-model-len",
        type=Count(min=2),
        default=SCHEDULER.max_model_len,
        help="Prompt and output tokens of a request together, at most; never more than the model's."
        + _default(SCHEDULER.max_model_len, "the model's"),
    ),
    click.option(
        "--copy-share",
        type=SHARE,
        default=SCHEDULER.copy_share,
        help="Share of a step's time that background copies may take; simulated: of the copy bandwidth."
        + _default(f"{SCHEDULER.copy_share:g}", f"{COPY_SHARE:g}"),
    ),
    click.option(
        "--speed",
        type=FROM_ZERO,
        help="Simulated seconds in a second; 0: as fast as it can.  [default:"
        f" {SPEED:g} in the live view, else 0]",
    ),
    click.option(
        "--memory-fraction",
        type=SHARE,
        help="Simulated: share of a device's memory for weights and KV.  [default: the model's]",
    ),
    click.option(
        "--request-tokens",
        type=Count(min=1),
        help="Simulated: tokens of a typical request, over which a recurrent state is shared out.",
    ),
)


def flag(name: str) -> str:
    """The option of a field."""
    return f"--{name.replace('_', '-')}"


def with_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds `OPTIONS` to a command, in this order in its help."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def given_options(ctx: click.Context) -> frozenset[str]:
    """The names of those that were not left at their defaults."""
    return frozenset(
        name
        for name in ctx.params
        if ctx.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT
    )
