"""All measurements, one after the other: python -m bench [--folder DIR] [--results DIR]

Makes the bench checkpoint if it is not there, runs decode, overhead, switch and memory on it, then sparse. Needs two
idle cores, and about 20 minutes; each part can be run alone, see its --help.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click

PARTS = ("decode", "overhead", "switch", "memory")


@click.command(help=__doc__)
@click.option(
    "--folder", default="build/bench-checkpoint", show_default=True, type=click.Path(path_type=Path)
)
@click.option("--results", default="build/bench", show_default=True, type=click.Path(path_type=Path))
def main(folder: Path, results: Path) -> None:
    if not (folder / "config.json").exists():
        _run("checkpoint", str(folder))
    results.mkdir(parents=True, exist_ok=True)
    for part in PARTS:
        click.echo(f"\n== python -m bench.{part}")
        _run(part, str(folder), "--json", str(results / f"{part}.json"))
    click.echo("\n== python -m bench.sparse")
    _run("sparse", "--json", str(results / "sparse.json"))


def _run(part: str, *args: str) -> None:
    subprocess.run([sys.executable, "-m", f"bench.{part}", *args], check=True)


if __name__ == "__main__":
    main()
