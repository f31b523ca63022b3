"""Fits the numbers of shipped profiles to tables of measured operations: python -m bench.fit_profiles [--write]

`bench/tables.toml` says which table fits which numbers. Each fit minimises the error's absolute value and its square
over a random half of the rows, from the same start, so that it gives the same numbers again; the error on the other
half is written into each number's source. Needs scipy, of the development dependencies.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import click
import numpy as np
from scipy.optimize import minimize

from bench import silicon
from bench.silicon import Column, Measured
from splash.hw.load import load_profile, profile_from_table, shipped_folder
from splash.hw.measure import with_numbers
from splash.hw.profile import HardwareProfile, Quantity
from splash.hw.write import profile_text, put, quantity

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TABLES = Path(__file__).parents[2] / "shared" / "data" / "hw"
"""Where the tables lie, unless an option says otherwise."""

FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)

KINDS = {
    "gemm": silicon.gemm,
    "mla_decode": silicon.mla_decode,
    "mla_prefill": silicon.mla_prefill,
    "dsa_decode": silicon.dsa_decode,
    "experts": silicon.experts,
    "tuned_experts": silicon.tuned_experts,
    "collective": silicon.collective,
}

SQUARES = 4.0
"""Weight of the squared error beside the absolute one: 25 % off is as bad as twice that, counted once."""

RESTARTS = 8
OPTIONS = {"maxfev": 3000, "xatol": 1e-3, "fatol": 1e-6}
SPAN = 100.0
"""A number is sought within this factor of its start."""

START = {
    "fixed": 1e-5,
    "depth": 1e-9,
    "ramp": 100.0,
    "per_row": 3e-8,
    "per_token": 1e-9,
    "per_head": 5e-10,
    "split": 5e-6,
    "tile": 128.0,
    "padding": 16.0,
    "per_expert": 2e-7,
    "alpha": 1e-5,
    "alpha_large": 3e-5,
}
"""Of the numbers that do not follow from the device's peaks."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Numbers of one section of a profile, and the measurements that they shall explain."""

    profile: str
    kind: str
    paths: tuple[str, ...]
    measured: Measured


@dataclass(frozen=True, slots=True)
class Likeness:
    """A section of a profile that no table has, and where it is taken from."""

    profile: str
    section: str
    like: str
    """The profile to take it from."""
    of: str
    """Its section there."""
    factors: Mapping[str, float]
    """By the numbers' names."""
    why: str


def likenesses() -> Iterator[Likeness]:
    """As `tables.toml` lists them, to be taken in this order."""
    for entry in entries()["like"]:
        profile, section = entry["profile"], entry["section"]
        yield Likeness(
            profile,
            section,
            entry.get("from", profile),
            entry.get("of", section),
            entry.get("factors", {}),
            entry["why"],
        )


def fits(tables: Path) -> Iterator[Fit]:
    """As `tables.toml` lists them; those of one profile build on the ones before."""
    for entry in entries()["fit"]:
        measured = KINDS[entry["kind"]](tables, **entry["of"])
        paths = tuple(f"{entry['section']}.{number}" for number in entry["numbers"])
        yield Fit(entry["profile"], entry["kind"], paths, measured)


def entries() -> dict[str, Any]:
    """What `tables.toml` says."""
    return tomllib.loads((Path(__file__).parent / "tables.toml").read_text(encoding="utf-8"))


def fitted(fit: Fit, profile: HardwareProfile) -> dict[str, float]:
    """The numbers under their paths, with which `profile` explains half of the rows best."""
    start = np.array([_start(profile, path) for path in fit.paths])
    tops = [min(SPAN, _limit(profile, path) / at) for path, at in zip(fit.paths, start, strict=True)]
    bounds = [(-np.log(SPAN), np.log(top)) for top in tops]
    lowest, highest = zip(*bounds, strict=True)
    rows = ~fit.measured.held_out
    seconds, weight = fit.measured.seconds[rows], fit.measured.weight[rows]

    def at(factors: Column) -> Column:
        return start * np.exp(factors)

    def loss(factors: Column) -> float:
        predicted = fit.measured.cost(with_numbers(profile, dict(zip(fit.paths, at(factors), strict=True))))
        error = np.abs(np.log(predicted[rows] / seconds))
        return float(np.average(error + SQUARES * error**2, weights=weight))

    random = np.random.default_rng(silicon.SEED)
    best = None
    for _ in range(RESTARTS):
        begin = np.zeros(len(start)) if best is None else best.x + random.normal(0, 0.4, len(start))
        begin = np.clip(begin, lowest, highest)
        found = minimize(loss, begin, bounds=bounds, method="Nelder-Mead", options=OPTIONS)
        best = found if best is None or found.fun < best.fun else best
    return dict(zip(fit.paths, map(float, at(best.x)), strict=True))


def _start(profile: HardwareProfile, path: str) -> float:
    """From the device's peaks: three quarters of the bandwidth, half of the arithmetic."""
    parts = path.split(".")
    key = parts[-1]
    if path.startswith("moe") and key == "per_token":
        return 5e-9
    if path.startswith("collective") and key.startswith("beta"):
        return profile.node.link_bandwidth.value * (0.8 if key == "beta_large" else 0.1)
    if key.isdecimal():
        widest = 128 if "by_heads" in path else 2048
        return 0.5 * _limit(profile, path) * min(1.0, int(key) / widest)
    return START.get(key) or 0.5 * _limit(profile, path)


def _limit(profile: HardwareProfile, path: str) -> float:
    """What a number cannot exceed: the peak of its dtype, the memory's bandwidth, nothing."""
    key = path.split(".")[-1]
    if path.startswith("collective"):
        return np.inf
    if key.endswith("bandwidth"):
        return _peak(profile, "bandwidth")
    if key == "flops" or key.isdecimal():
        named = [name for name in ("float32", "fp8", "int8") if name in path]
        return _peak(profile, named[0] if named else "bfloat16")
    return np.inf


def _peak(profile: HardwareProfile, name: str) -> float:
    peak: Quantity = getattr(profile.peak, name)
    return peak.value


def fit_into(table: dict[str, Any], fit: Fit) -> str:
    """Puts the fitted numbers into a profile's table, and returns the source that they carry."""
    peaks = load_profile(fit.profile)
    for path in fit.paths:
        put(table, path, quantity(_start(peaks, path), "fitted: from here"))
    profile = profile_from_table(table, name=fit.profile, where=fit.profile)
    numbers = fitted(fit, profile)
    words = source(fit, with_numbers(profile, numbers))
    for path, value in numbers.items():
        put(table, path, quantity(value, words))
    return words


def source(fit: Fit, profile: HardwareProfile) -> str:
    """How well `profile` explains the rows that were not fitted, for the numbers' provenance."""
    measured = fit.measured
    errors = 100 * measured.errors(profile, measured.held_out & (measured.weight > 0))
    return (
        f"fitted: {measured.table}, {measured.name}, half of {len(measured.seconds)} rows; error on the other half: "
        f"median {np.median(errors):.1f} %, p90 {np.percentile(errors, 90):.0f} %"
    )


def liken(table: dict[str, Any], other: Mapping[str, Any], likeness: Likeness) -> None:
    """Copies the section's numbers from `other`, times their factors, as what they are here: assumed."""
    for path, number in _quantities(_at(other, likeness.of), likeness.section):
        factor = likeness.factors.get(path.split(".")[-1], 1.0)
        words = f"assumed: {likeness.why}" + (f", times {factor:g}" if factor != 1 else "")
        put(table, path, quantity(number["value"] * factor, words))


def _quantities(section: Mapping[str, Any], path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for key, value in section.items():
        if "source" in value:
            yield f"{path}.{key}", value
        else:
            yield from _quantities(value, f"{path}.{key}")


@click.command(help=__doc__)
@click.option(
    "--tables", default=TABLES, show_default="../shared/data/hw", type=click.Path(path_type=Path, exists=True)
)
@click.option("--write", is_flag=True, help="Write the numbers into hwprofiles/.")
@click.option("--only", help="Of one profile.")
def main(tables: Path, write: bool, only: str | None) -> None:
    files: dict[str, dict[str, Any]] = {}
    for fit in fits(tables):
        if only in (None, fit.profile):
            table = files.setdefault(fit.profile, _read(fit.profile))
            click.echo(f"{fit.profile}: {fit_into(table, fit)}")
            for path in fit.paths:
                click.echo(f"    {path} = {_at(table, path)['value']:g}")
    for likeness in likenesses():
        if only in (None, likeness.profile):
            other = files.get(likeness.like) or _read(likeness.like)
            liken(files.setdefault(likeness.profile, _read(likeness.profile)), other, likeness)
    for name, table in files.items() if write else ():
        file = shipped_folder() / f"{name}.toml"
        file.write_text(profile_text(table, comment=_comment(file)), encoding="utf-8")


def _read(profile: str) -> dict[str, Any]:
    return tomllib.loads((shipped_folder() / f"{profile}.toml").read_text(encoding="utf-8"))


def _at(table: Mapping[str, Any], path: str) -> Any:
    return reduce(lambda section, key: section[key], path.split("."), table)


def _comment(file: Path) -> str:
    """The lines at the top of a profile."""
    lines = file.read_text(encoding="utf-8").splitlines()
    top = lines[: next(number for number, line in enumerate(lines) if not line.startswith("#"))]
    return "\n".join(line.removeprefix("#").removeprefix(" ") for line in top)


if __name__ == "__main__":
    main()
