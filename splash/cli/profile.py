"""`splash profile`: measures this machine's devices and writes a hardware profile of them."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import click

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
@click.option(
    "--ranks", type=click.IntRange(min=1), default=2, show_default=True, help="Ranks that run at once."
)
@click.option(
    "--out",
    "-o",
    "file",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="The profile to write. In the folder of your own profiles it is known by its file's name.",
)
def command(name: str, ranks: int, file: Path) -> int:
    """Time the operations that a step is made of, on an otherwise idle machine, and write a profile.

    Products, experts, attention, collectives and copies run as the engine runs them, on all ranks at once, for about a
    minute. Then a random model is served for what operations do not show: the time between steps, and of layers.
    """
    from splash.cli.hardware import port_named
    from splash.core.errors import ConfigError
    from splash.engine.overheads import CONFIG, measured_overheads
    from splash.exec.measure import slowest_timings
    from splash.hw.load import profile_from_table
    from splash.hw.measure import Measurement, measured_table
    from splash.hw.write import profile_text, put, quantity
    from splash.model.synthetic import write_random

    if not file.parent.is_dir():
        raise ConfigError(f"the folder {file.parent} does not exist (-o)")
    backend = port_named(name, "--hw")
    devices = backend.probe()
    device = devices[0]
    job = backend.launch(ranks, "splash.exec.measure:measure_ranks", None)
    try:
        by_rank = job.receive(timeout_s=TIMEOUT_S)
    finally:
        job.close()
    where = f"{device.name}, {ranks} ranks busy, {_today()}, splash profile --hw {name} --ranks {ranks}"
    table = measured_table(
        Measurement(
            device=backend.name,
            summary=f"1 of {ranks} ranks on {device.name}",
            where=where,
            ranks=ranks,
            memory_bytes=device.memory_bytes,
            shared_by=backend.caps.max_ranks // len(devices),
            timings=slowest_timings(by_rank),
        )
    )
    profile = profile_from_table(table, name=file.stem, where=str(file))
    with TemporaryDirectory() as folder:
        write_random(Path(folder), CONFIG)
        host = measured_overheads(Path(folder), profile, backend=name, ranks=ranks)
    for key, value in (("step", host.step_s), ("request", host.request_s), ("layer", host.layer_s)):
        source = f"measured: {where}, serving a random model: beside its operations"
        put(table, f"host.{key}_overhead", quantity(value, source))
    file.write_text(profile_text(table, comment=f"Measured on {where}."), encoding="utf-8")
    click.echo(f"{file}: {len(by_rank[0])} operations, {profile.summary}")
    return 0


def _today() -> str:
    from datetime import date

    return date.today().isoformat()
