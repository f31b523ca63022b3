"""Costs of operations against tables of measured ones: python -m bench.cost_vs_tables [--tables DIR] [--json FILE]

Where numbers were fitted to a table, the half of its rows that was not fitted judges them (`bench/tables.toml`). A gate
bounds the median and the 90th percentile of the relative error; a line without a gate says how far a profile carries
to another framework's kernels. Ends with status 1 if a gate is missed, unless told to report only. Without the tables
nothing is measured, and that is said.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from bench.fit_profiles import KINDS, TABLES, entries, fits
from bench.machine import provenance
from bench.silicon import Column, absorption
from bench.silicon_layer import LayerTables, decode_errors, prefill_errors
from splash.hw.load import load_profile

GATES = {
    "gemm": (12, 30),
    "mla_decode": (10, 25),
    "dsa_decode": (12, 35),
    "collective": (8, 25),
    "experts": (8, 25),
    "tuned_experts": (8, 25),
    "layer decode": (5, 13),
    "layer prefill": (9, 14),
}
"""Median and 90th percentile, in per cent."""


@dataclass(frozen=True, slots=True)
class Line:
    """One comparison. Errors in per cent."""

    profile: str
    what: str
    rows: int
    median: float
    p90: float
    gate: tuple[int, int] | None

    @property
    def verdict(self) -> str:
        if self.gate is None:
            return "no gate"
        return "holds" if self.median <= self.gate[0] and self.p90 <= self.gate[1] else "MISSED"


def line(profile: str, what: str, errors: Column, gate: tuple[int, int] | None) -> Line:
    median, p90 = (round(100 * float(np.percentile(errors, at)), 1) for at in (50, 90))
    return Line(profile, what, len(errors), median, p90, gate)


def fitted_lines(tables: Path) -> Iterator[Line]:
    """Held-out rows of every fit; the collectives of one profile are one line."""
    collectives: dict[str, list[Column]] = {}
    for fit in fits(tables):
        profile, measured = load_profile(fit.profile), fit.measured
        errors = measured.errors(profile, measured.held_out & measured.counted)
        if fit.kind == "collective":
            collectives.setdefault(fit.profile, []).append(errors)
        yield line(
            fit.profile, measured.name, errors, GATES.get(fit.kind) if fit.kind != "collective" else None
        )
    for name, several in collectives.items():
        yield line(name, "all collectives", np.concatenate(several), GATES["collective"])


def layer_lines(tables: Path) -> Iterator[Line]:
    for entry in entries()["layer"]:
        profile, measured = load_profile(entry["profile"]), LayerTables.of(tables, entry)
        for phase, errors in (("decode", decode_errors), ("prefill", prefill_errors)):
            name = f"layer {phase}"
            yield line(profile.name, name, np.array(list(errors(profile, measured))), GATES[name])


def unseen_lines(tables: Path) -> Iterator[Line]:
    kinds = {**KINDS, "absorption": absorption}
    for entry in entries()["unseen"]:
        measured = kinds[entry["kind"]](tables, **entry["of"])
        errors = measured.errors(load_profile(entry["profile"]), measured.counted)
        yield line(entry["profile"], f"{measured.name}, unseen {measured.table}", errors, None)


def show(lines: list[Line]) -> None:
    click.echo(
        f"{'profile':8} {'operation':64} {'rows':>6} {'median %':>9} {'p90 %':>7} {'gate':>7}  verdict"
    )
    for each in lines:
        gate = "{}/{}".format(*each.gate) if each.gate else ""
        click.echo(
            f"{each.profile:8} {each.what:64} {each.rows:6} {each.median:9.1f} {each.p90:7.1f} {gate:>7}  "
            f"{each.verdict}"
        )


def report(lines: list[Line]) -> dict[str, Any]:
    missed = [f"{each.profile} {each.what}" for each in lines if each.verdict == "MISSED"]
    rows = [{**asdict(each), "verdict": each.verdict} for each in lines]
    return {**provenance(), "gates_missed": missed, "lines": rows}


@click.command(help=__doc__)
@click.option("--tables", default=TABLES, show_default="../shared/data/hw", type=click.Path(path_type=Path))
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Also write the result there.")
@click.option("--report-only", is_flag=True, help="End with status 0 whatever the verdicts.")
@click.pass_context
def main(context: click.Context, tables: Path, json_file: Path | None, report_only: bool) -> None:
    if not tables.is_dir():
        click.echo(f"skipped: no tables in {tables} (--tables DIR); they are not part of the repository")
        return
    lines = [*fitted_lines(tables), *layer_lines(tables), *unseen_lines(tables)]
    show(lines)
    result = report(lines)
    if json_file is not None:
        json_file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if result["gates_missed"]:
        click.echo(f"\nmissed: {', '.join(result['gates_missed'])}")
        context.exit(0 if report_only else 1)


if __name__ == "__main__":
    main()
