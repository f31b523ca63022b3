"""`splash conformance`: the checks that a port must pass, on this machine."""

from __future__ import annotations

import click

from splash.cli.numbers import Whole

OUTCOME_STYLES = {"passed": "green", "failed": "bold red", "not supported": "yellow"}


@click.command("conformance")
@click.option("--backend", metavar="NAME", default="cpu", show_default=True, help="Name of a port.")
@click.option("--ranks", type=Whole(min=1), multiple=True, help="Repeat for more.  [default: 1, 2]")
def command(backend: str, ranks: tuple[int, ...]) -> int:
    """Check a port: collectives, memory and copies, attention. Exits with 1 if a check fails."""
    from rich.console import Console
    from rich.text import Text

    from splash.cli.hardware import port_named
    from splash.hal.conformance.suite import iterate
    from splash.tui.units import plural

    console = Console(highlight=False)
    port = port_named(backend, "--backend")
    num_failed = num_checks = 0
    for count in ranks or (1, 2):
        for result in iterate(port, count):
            num_checks += 1
            num_failed += result.outcome == "failed"
            line = Text(f"{plural(count, 'rank')}  {result.name}  {result.seconds:.2f} s  ")
            line.append(result.outcome, style=OUTCOME_STYLES[result.outcome])
            console.print(line.append(f"  {result.detail}" if result.detail else ""))
    console.print(f"{backend}: {num_checks - num_failed} of {num_checks} checks without a fault")
    return 1 if num_failed else 0
