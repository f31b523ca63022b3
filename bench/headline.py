"""The headline experiment: three deployments under five loads, in every fixed layout, under the policy, and beside its
yardsticks.

    python -m bench.headline --json bench/results/headline.json

Open-loop loads come at 1.2 times the rate that the best fixed layout can carry: what that layout serves of the same
requests in a second when they all come at once. Throughputs are output tokens per second of makespan.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import click

from bench.machine import provenance
from splash.layout.layouts import LAYOUTS
from splash.sim.deployment import SimDeployment, deploy
from splash.sim.modes import AUTO, MODES, ORACLE, RESTART, better, simulate
from splash.sim.presets import choose
from splash.sim.result import RunResult
from splash.sim.traces import load

DEPLOYMENTS = ("glm-5.3", "deepseek-v3.2", "glm-5.3-flash")
LOADS = ("rl-drain", "burst", "phase-shift", "long-mixed", "steady")
OVERLOAD = 1.2
LONGEST = 131_072
"""The longest prompt: what all three models can take."""
CROWD = {"steady": 2000, "burst": 2000, "long-mixed": 400}
"""Requests of which the rate that can be carried is found: enough to fill the batch for most of the time."""
CROWD_RATE = 1e5
"""Requests per second at which all come at once, as good as."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One deployment under one load."""

    model: str
    load: str
    rate: float | None
    """Requests per second; None where all come at once."""


@dataclass(frozen=True, slots=True)
class Row:
    """A cell's results by mode, and what they say."""

    cell: Cell
    tokens_per_s: dict[str, float]
    ttft_p99_s: dict[str, float | None]
    tpot_p50_s: dict[str, float | None]
    preemptions: dict[str, int]
    switches: dict[str, int]
    time_share: dict[str, float]
    """Of auto."""
    wall_s: dict[str, float]

    @property
    def best_fixed(self) -> str:
        return max(LAYOUTS, key=lambda name: self.tokens_per_s[name])

    @property
    def of_fixed(self) -> float:
        """auto over the best fixed layout."""
        return self.tokens_per_s[AUTO] / self.tokens_per_s[self.best_fixed]

    @property
    def of_oracle(self) -> float:
        return self.tokens_per_s[AUTO] / self.tokens_per_s[ORACLE]

    def to_json(self) -> dict[str, Any]:
        ratios = {name: self.tokens_per_s[AUTO] / self.tokens_per_s[name] for name in MODES}
        return {
            **asdict(self.cell),
            "tokens_per_s": self.tokens_per_s,
            "auto_over": ratios,
            "best_fixed": self.best_fixed,
            "within_1_percent_of_best_fixed": self.of_fixed >= 0.99,
            "within_5_percent_of_oracle": self.of_oracle >= 0.95,
            "ttft_p99_s": self.ttft_p99_s,
            "tpot_p50_s": self.tpot_p50_s,
            "preemptions": self.preemptions,
            "switches": self.switches,
            "time_share": self.time_share,
            "wall_s": self.wall_s,
        }


def deployment(model: str) -> SimDeployment:
    """As its preset says."""
    choice = choose(model, None)
    return deploy(model, choice.model.spec, choice.profile, choice.settings)


def workload_name(load_name: str, rate: float | None, duration_s: float) -> str:
    """The generator's name and parameters."""
    if load_name == "rl-drain":
        return load_name
    if load_name == "phase-shift":
        return f"phase-shift:rate={rate},chat_s={duration_s},long_s={duration_s / 2},longest={LONGEST}"
    longest = f",longest={LONGEST}" if load_name == "long-mixed" else ""
    return f"{load_name}:rate={rate},duration_s={duration_s}{longest}"


def carried(deployed: SimDeployment, load_name: str) -> float:
    """Requests per second that the best fixed layout serves of this kind of load when they all come at once."""
    kind = "steady" if load_name == "phase-shift" else load_name
    crowd = load(workload_name(kind, 4.0, CROWD[kind] / 4.0), seed=1).at_rate(CROWD_RATE)
    runs = [simulate(deployed, crowd, name, stopwatch=time.perf_counter) for name in LAYOUTS]
    return max(run.num_requests / run.makespan_s for run in runs)


def measured(cell: Cell, seed: int, duration_s: float) -> Row:
    """Runs of all modes."""
    deployed = deployment(cell.model)
    requests = load(workload_name(cell.load, cell.rate, duration_s), seed=seed)
    runs = {mode: simulate(deployed, requests, mode, stopwatch=time.perf_counter) for mode in MODES}
    runs[ORACLE] = better(runs[ORACLE], [runs[name] for name in LAYOUTS])
    return row(cell, runs)


def row(cell: Cell, runs: dict[str, RunResult]) -> Row:
    return Row(
        cell,
        tokens_per_s={mode: run.output_tokens_per_s for mode, run in runs.items()},
        ttft_p99_s={mode: run.ttft_s.p99 for mode, run in runs.items()},
        tpot_p50_s={mode: run.tpot_s.p50 for mode, run in runs.items()},
        preemptions={mode: run.preemptions for mode, run in runs.items()},
        switches={mode: len(run.switches) for mode, run in runs.items()},
        time_share=runs[AUTO].time_share,
        wall_s={mode: run.wall_s for mode, run in runs.items()},
    )


def one(model: str, load_name: str, seed: int, duration_s: float) -> Row:
    """A cell, its rate found first."""
    rate = None
    if load_name != "rl-drain":
        rate = OVERLOAD * carried(deployment(model), load_name)
    return measured(Cell(model, load_name, rate), seed, duration_s)


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Markdown: auto over each other way, above 1 where auto is faster."""
    others = (*LAYOUTS, ORACLE, RESTART)
    yield f"| deployment | load | auto tokens/s | {' | '.join(f'/ {name}' for name in others)} | auto's time |"
    yield f"|---|---|{'---:|' * (len(others) + 1)}---|"
    for found in rows:
        auto = found.tokens_per_s[AUTO]
        ratios = [f"{auto / found.tokens_per_s[name]:.3f}" for name in others]
        marked = [
            f"**{ratio}**" if name == found.best_fixed else ratio
            for name, ratio in zip(others, ratios, strict=True)
        ]
        share = ", ".join(
            f"{name} {share:.0%}"
            for name, share in sorted(found.time_share.items(), key=lambda item: -item[1])
            if share >= 0.005
        )
        yield f"| {found.cell.model} | {found.cell.load} | {auto:,.0f} | {' | '.join(marked)} | {share} |"


@click.command()
@click.option("--json", "json_file", type=click.Path(path_type=Path))
@click.option("--models", default=",".join(DEPLOYMENTS), show_default=True)
@click.option("--loads", default=",".join(LOADS), show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--duration", default=200.0, show_default=True, help="Seconds of arrivals, open-loop loads.")
@click.option("--jobs", default=2, show_default=True, help="Processes.")
def main(json_file: Path | None, models: str, loads: str, seed: int, duration: float, jobs: int) -> None:
    """All cells, each by itself; deterministic but for the wall times."""
    wanted = [(model, name) for model in models.split(",") for name in loads.split(",")]
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        running = [pool.submit(one, model, name, seed, duration) for model, name in wanted]
        rows = []
        for (model, name), future in zip(wanted, running, strict=True):
            rows.append(future.result())
            print(
                f"{model} {name}: {rows[-1].of_fixed:.3f} of the best fixed, {rows[-1].of_oracle:.3f} of the oracle"
            )
    for line in table(rows):
        print(line)
    if json_file is not None:
        data = {
            **provenance(),
            "seed": seed,
            "duration_s": duration,
            "overload": OVERLOAD,
            "cells": [found.to_json() for found in rows],
        }
        json_file.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
