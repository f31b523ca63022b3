"""`splash plan`: what a model takes on a number of ranks, before anybody has the machine."""

from __future__ import annotations

import contextlib

import click


@click.command("plan")
@click.option(
    "--model", metavar="NAME|DIR", required=True, help="A model by name, or the folder of a checkpoint."
)
@click.option("--ranks", type=click.IntRange(min=1), help="Ranks of the deployment.  [default: 8, or fewer]")
@click.option(
    "--check",
    is_flag=True,
    required=True,
    help="Build every rank on torch's meta device, and compare the folder's tensors with the model's.",
)
@click.option(
    "--json",
    "json_file",
    metavar="FILE",
    help="Write the figures; - is standard output, and nothing else goes there then.",
)
def command(model: str, ranks: int | None, check: bool, json_file: str | None) -> int:
    """Parameters and bytes of a model, per rank and layout; nothing is allocated, no weights are read.

    Exits with 1 if a check finds something wrong.
    """
    from splash.cli.output import JsonTarget
    from splash.cli.plan_check import as_json, check_model, show

    with JsonTarget(json_file) if json_file else contextlib.nullcontext() as target:
        checked = check_model(model, ranks)
        if target is not None:
            target.write({"model": model, "check": as_json(checked)})
        if json_file != "-":
            show(checked)
    return 1 if checked.problems else 0
