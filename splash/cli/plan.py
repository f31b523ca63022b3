"""`splash plan`: what a model makes of hardware, before anybody has the machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from splash.cli.deploy_options import DeployOptions, with_deployment
from splash.cli.numbers import POSITIVE, Count
from splash.cli.output import STDOUT, Target, json_text, output_console, target_of

if TYPE_CHECKING:
    from splash.sim.planner import Plan
    from splash.sim.target import Answer, Traffic


@click.command("plan")
@with_deployment
@click.option(
    "--target-rate", type=POSITIVE, help="Requests a second: find the fewest ranks that carry them."
)
@click.option(
    "--prompt-tokens",
    type=Count(min=1),
    help="Of such a request.  [default: 1024]",
)
@click.option(
    "--output-tokens",
    type=Count(min=1),
    help="Of such a request.  [default: 512]",
)
@click.option("--ttft", type=POSITIVE, help="Seconds to the first token that are to be kept, in the mean.")
@click.option("--tpot", type=POSITIVE, help="Seconds a token that are to be kept, in the mean.")
@click.option(
    "--max-ranks",
    type=Count(min=1),
    help="That may be proposed for the rate.  [default: 64]",
)
@click.option(
    "--check",
    is_flag=True,
    help="Instead, build every rank on torch's meta device, and compare the folder's tensors with the model's.",
)
@click.option(
    "--json",
    "json_file",
    metavar="FILE",
    help="Write the figures; - is standard output, and nothing else goes there then.",
)
def command(
    target_rate: float | None,
    prompt_tokens: int | None,
    output_tokens: int | None,
    ttft: float | None,
    tpot: float | None,
    max_ranks: int | None,
    check: bool,
    json_file: str | None,
    **deployment: Any,
) -> int:
    """Whether a model fits, its memory by part, the KV of every layout, and which layout is best when.

    Nothing is allocated and no weights are read. With --target-rate: the fewest ranks that carry it, and how.

    Exit codes: 1 if no number of ranks carries the rate, or --check finds something wrong; 2 if the model does not fit,
    or what was asked cannot be.
    """
    options = DeployOptions(**deployment)
    if check:
        return _check(options, json_file)
    wishes = (prompt_tokens, output_tokens, ttft, tpot, max_ranks)
    if target_rate is None and any(wish is not None for wish in wishes):
        raise click.UsageError(
            "--prompt-tokens, --output-tokens, --ttft, --tpot and --max-ranks need a --target-rate"
        )
    if target_rate is not None and options.ranks is not None:
        raise click.UsageError(
            "--target-rate finds the number of ranks: leave out --ranks, or bound it with --max-ranks"
        )
    traffic = None if target_rate is None else _traffic(target_rate, prompt_tokens, output_tokens, ttft, tpot)
    with target_of(json_file, "--json") as target:
        return _plan(options, traffic, max_ranks, target, silent=json_file == STDOUT)


def _plan(
    options: DeployOptions,
    traffic: Traffic | None,
    max_ranks: int | None,
    target: Target | None,
    *,
    silent: bool,
) -> int:
    """Asked, written and shown; CapacityError, after that, where the model does not fit. 1: no ranks carry the rate."""
    from splash.cli.plan_table import show_answer, show_plan
    from splash.core.errors import CapacityError
    from splash.sim.fitting import shortage
    from splash.sim.plan_json import plan_json

    plan, answer = _asked(options, traffic, max_ranks)
    if target is not None:
        target.write(json_text(plan_json(plan, answer)))
    if not silent:
        console = output_console({})
        if answer is not None:
            show_answer(console, plan, answer)
        if answer is None or answer.ranks is not None:
            show_plan(console, plan)
    if not plan.fits:
        raise CapacityError(shortage(plan.model, plan.memory, plan.lacking, plan.remedies))
    return 1 if answer is not None and answer.ranks is None else 0


def _asked(
    options: DeployOptions, traffic: Traffic | None, max_ranks: int | None
) -> tuple[Plan, Answer | None]:
    """The plan of the ranks that were asked for, or of those found for a rate."""
    from splash.sim.fitting import possible_ranks
    from splash.sim.planner import Plan
    from splash.sim.target import MOST_RANKS, fewest_ranks, with_ranks

    choice = options.choice()
    plan = Plan(choice.model.name, choice.model.spec, choice.profile, options.settings(choice))
    plan.check()
    if traffic is None:
        return plan, None
    answer = fewest_ranks(plan, traffic, possible_ranks(plan.spec, plan.profile, max_ranks or MOST_RANKS))
    found = answer.ranks or answer.most_ranks
    return (plan if found is None else with_ranks(plan, found)), answer


def _traffic(
    rate: float,
    prompt_tokens: int | None,
    output_tokens: int | None,
    ttft_s: float | None,
    tpot_s: float | None,
) -> Traffic:
    from splash.sim.target import OUTPUT_TOKENS, PROMPT_TOKENS, Traffic

    return Traffic(rate, prompt_tokens or PROMPT_TOKENS, output_tokens or OUTPUT_TOKENS, ttft_s, tpot_s)


def _check(options: DeployOptions, json_file: str | None) -> int:
    from splash.cli.plan_check import as_json, check_model, show

    if options.model is None:
        raise click.UsageError("--check needs a --model")
    with target_of(json_file, "--json") as target:
        checked = check_model(options.model, options.ranks)
        if target is not None:
            target.write(json_text({"model": options.model, "check": as_json(checked)}))
        if json_file != STDOUT:
            show(checked)
    return 1 if checked.problems else 0
