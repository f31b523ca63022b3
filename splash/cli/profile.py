"""`splash profile`: measures this machine's devices and writes a hardware profile of them."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from splash.cli.numbers import Whole
from splash.cli.output import STDOUT, Target

if TYPE_CHECKING:
    from splash.hal.protocol import Backend

TIMEOUT_S = 600.0


@click.command("profile")
@click.option(
    "--hw",
    "name",
    metavar="NAME",
    default="cpu",
    show_default=True,
    help="The port whose device is measured.",
)
@click.option("--ranks", type=Whole(min=1), default=2, show_default=True, help="Ranks that run at once.")
@click.option(
    "--out",
    "-o",
    "file",
    metavar="FILE",
    type=click.Path(path_type=Path, allow_dash=True),
    required=True,
    help="The profile to write; - is standard output. In the folder of your own profiles it is known by its file's"
    " name.",
)
def command(name: str, ranks: int, file: Path) -> int:
    """Time the operations that a step is made of, on an otherwise idle machine, and write a profile.

    Products, experts, attention, collectives and copies run as the engine runs them, on all ranks at once, for about a
    minute. Then a random model is served for what operations do not show: the time between steps, and of layers.
    """
    from splash.cli.hardware import port_named
    from splash.engine.overheads import CONFIG, measured_overheads
    from splash.hw.load import profile_from_table
    from splash.hw.write import profile_text, put, quantity
    from splash.model.synthetic import write_random

    backend = port_named(name, "--hw")
    with Target(file, "--out") as target:
        where = f"{backend.probe()[0].name}, {ranks} ranks busy, {_today()}, splash profile --hw {name} --ranks {ranks}"
        by_rank = _measured(backend, ranks)
        table = _table(backend, ranks, by_rank, where)
        profile = profile_from_table(table, name=_name(file), where=str(file))
        with TemporaryDirectory() as folder:
            write_random(Path(folder), CONFIG)
            host = measured_overheads(Path(folder), profile, backend=name, ranks=ranks)
        for key, value in (("step", host.step_s), ("request", host.request_s), ("layer", host.layer_s)):
            source = f"measured: {where}, serving a random model: beside its operations"
            put(table, f"host.{key}_overhead", quantity(value, source))
        target.write(profile_text(table, comment=f"Measured on {where}."))
    words = f"{file}: {len(by_rank[0])} operations, {profile.summary}"
    click.echo(words, err=str(file) == STDOUT)
    return 0


def _measured(backend: Backend, ranks: int) -> list[Any]:
    """The timings of all ranks."""
    job = backend.launch(ranks, "splash.exec.measure:measure_ranks", None)
    try:
        return job.receive(timeout_s=TIMEOUT_S)
    finally:
        job.close()


def _table(backend: Backend, ranks: int, by_rank: list[Any], where: str) -> dict[str, Any]:
    """A profile as TOML has it, without what the host adds."""
    from splash.exec.measure import slowest_timings
    from splash.hw.measure import Measurement, measured_table

    devices = backend.probe()
    return measured_table(
        Measurement(
            device=backend.name,
            summary=f"1 of {ranks} ranks on {devices[0].name}",
            where=where,
            ranks=ranks,
            memory_bytes=devices[0].memory_bytes,
            shared_by=backend.caps.max_ranks // len(devices),
            timings=slowest_timings(by_rank),
        )
    )


def _name(file: Path) -> str:
    """What a profile is known by."""
    return "measured" if str(file) == STDOUT else file.stem


def _today() -> str:
    from datetime import date

    return date.today().isoformat()
