"""Predicted against measured step times on this machine: python -m bench.cost_vs_cpu FOLDER [--json FILE]

One engine serves a number of requests of one context and, while they decode, is switched through all layouts; then it
computes long prompts in each. Steps alike are one line: their median time from end to end, and what they computed. The
cost model prices that on the machine's profile. A cell is a batch and a context; its choice is the layout with the
least predicted time. What was measured before is kept in the JSON, so a run can be divided (`--batches`), and priced
again on another profile without measuring (`--batches ''`).
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import click

from bench.load import random_prompts
from bench.machine import BUSY_LIMIT, Bystanders, idleness, provenance, warn_if_busy
from splash.core.config import EngineConfig, SchedulerConfig
from splash.core.params import SamplingParams
from splash.engine.client import Engine
from splash.engine.deployment import open_deployment
from splash.engine.pricing import cost_model
from splash.hw.cost import CostModel
from splash.hw.load import load_profile
from splash.layout.layouts import LAYOUTS, assigned
from splash.layout.rows import Method
from splash.layout.work import DecodeRows, PromptRows, Work
from splash.sched.step import StepPlan, StepResult
from splash.sim.mirror import LengthMirror

TOUR = ("tp", "dop", "dp", "dcp", "cp")
"""In this order the switches move little."""
STEPS, UNCOUNTED = 24, 4
"""Steps of a line, after some that are not counted."""
MOST_TOKENS = 32768
"""Batch times context at most, since the prompts are computed first."""
PROMPT, REPEATS = 2048, 2
TRIES = 6
"""Of a line whose steps others disturbed; the least disturbed counts."""
GATE_MEDIAN, GATE_CHOSEN, TOLERANCE = 15.0, 0.9, 1.05


Kind = tuple[str, int, tuple[int, ...]]
"""Layout, decodes, and where the chunks of prompts begin."""


@dataclass(frozen=True, slots=True)
class Step:
    """What a step computed, and the seconds since the end of the one before."""

    work: Work
    seconds: float

    @property
    def kind(self) -> Kind:
        """Steps of one kind differ in their contexts only."""
        (layout,) = {at.layout.name for at in self.work.places}
        return layout, sum(d.rows for d in self.work.decodes), tuple(p.start for p in self.work.prompts)


class Watch:
    """Told of every step of an engine; queues those that are of one layout, with none under way to another."""

    def __init__(self, keeps: float) -> None:
        self._mirror = LengthMirror(keeps)
        self._last_end_s: float | None = None
        self._moved = False
        self.steps: SimpleQueue[Step] = SimpleQueue()

    def __call__(self, plan: StepPlan, result: StepResult) -> None:
        work, _ = self._mirror.apply(plan)
        before_s, self._last_end_s = self._last_end_s, result.ended_s if plan.num_rows else None
        moving = bool(plan.copies or plan.stages or plan.flips)
        moved, self._moved = self._moved, moving
        if before_s is None or moving or moved or len({at.layout for at in work.places}) != 1:
            return
        self.steps.put(Step(work, result.ended_s - before_s))


def decode_lines(engine: Engine, watch: Watch, batch: int, context: int) -> Iterator[dict[str, Any]]:
    """`batch` requests: every layout in turn, while they decode."""
    params = SamplingParams(max_tokens=engine.deployment.max_model_len - context, ignore_eos=True)
    prompts = random_prompts(batch, context, vocab_size=engine.deployment.vocab_size, seed=batch)
    engine.switch(TOUR[0])
    streams = [engine.submit(prompt, params) for prompt in prompts]
    for layout in TOUR:
        engine.switch(layout)
        tries = [steps_alike(watch, (layout, batch, ()))]
        while tries[-1][0] > BUSY_LIMIT and len(tries) < TRIES:
            tries.append(steps_alike(watch, (layout, batch, ())))
        disturbed, alike = min(tries, key=lambda found: found[0])
        yield measured_line(alike, layout, batch=batch, context=context) | {"disturbed": disturbed}
    for stream in streams:
        stream.abort()
    for stream in streams:
        stream.outcome()


def steps_alike(watch: Watch, kind: Kind) -> tuple[float, list[Step]]:
    """The next ones of a kind, and what others took of the machine meanwhile."""
    alike: list[Step] = []
    bystanders = Bystanders()
    while len(alike) < UNCOUNTED + STEPS:
        step = watch.steps.get()
        if step.kind == kind:
            alike.append(step)
        if len(alike) == UNCOUNTED:
            bystanders.share()
    return bystanders.share(), alike[UNCOUNTED:]


def chunk_lines(engine: Engine, watch: Watch) -> Iterator[dict[str, Any]]:
    """A long prompt alone. Its first chunk has no step before it to be timed from."""
    vocab_size = engine.deployment.vocab_size
    prompts = [random_prompts(1, PROMPT, vocab_size=vocab_size, seed=seed)[0] for seed in range(REPEATS)]
    for layout in TOUR:
        engine.switch(layout)
        by_start: dict[int, list[Step]] = defaultdict(list)
        for prompt in prompts:
            engine.submit(prompt, SamplingParams(max_tokens=2, ignore_eos=True)).outcome()
        while not watch.steps.empty():
            step = watch.steps.get()
            if step.kind[:2] == (layout, 0):
                by_start[step.kind[2][0]].append(step)
        for start, alike in sorted(by_start.items()):
            yield measured_line(alike, layout, start=start)


def measured_line(alike: Sequence[Step], layout: str, **what: int) -> dict[str, Any]:
    """The median of their times, and what the step in their middle computed."""
    return {
        **what,
        "layout": layout,
        "steps": len(alike),
        "measured_s": statistics.median(step.seconds for step in alike),
        "work": plain(alike[len(alike) // 2].work),
    }


def plain(work: Work) -> dict[str, Any]:
    """As JSON has it."""
    return {
        "decodes": [[d.at.home, d.rows, int(d.context), int(d.selected)] for d in work.decodes],
        "prompts": [[p.at.home, p.method.value, p.start, p.count] for p in work.prompts],
        "sampled": work.sampled,
    }


def work_of(given: dict[str, Any], layout: str) -> Work:
    """The inverse of `plain`."""
    at = LAYOUTS[layout]
    return Work(
        tuple(DecodeRows(assigned(at, home), *counts) for home, *counts in given["decodes"]),
        tuple(
            PromptRows(assigned(at, home), Method(method), start, count)
            for home, method, start, count in given["prompts"]
        ),
        given["sampled"],
    )


# ---- what the model says of it


def priced(measured: dict[str, Any], cost: CostModel) -> dict[str, Any]:
    found = cost.step(work_of(measured["work"], measured["layout"]))
    parts = {part.name: float(getattr(found, part.name)) for part in fields(found)}
    predicted = sum(parts.values())
    return {
        **measured,
        "predicted_s": predicted,
        "error": predicted / measured["measured_s"] - 1,
        "parts_s": parts,
    }


def choices(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """By cell: the layout of the least predicted time, and what its measured time is above the best one's."""
    cells: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for each in lines:
        if "batch" in each:
            cells[each["batch"], each["context"]].append(each)
    found = []
    for (batch, context), layouts in sorted(cells.items()):
        if len(layouts) < len(LAYOUTS):
            continue
        chosen, best = (
            min(layouts, key=lambda x, figure=figure: float(x[figure]))
            for figure in ("predicted_s", "measured_s")
        )
        ratio = chosen["measured_s"] / best["measured_s"]
        names = {"chosen": chosen["layout"], "best": best["layout"]}
        found.append(
            {"batch": batch, "context": context, **names, "above_best": ratio - 1, "good": ratio <= TOLERANCE}
        )
    return found


def judged(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The gates."""
    errors = [100 * abs(each["error"]) for each in lines]
    decodes = [100 * abs(each["error"]) for each in lines if "batch" in each]
    cells = choices(lines)
    median, good = (
        statistics.median(errors),
        statistics.fmean(cell["good"] for cell in cells) if cells else 0.0,
    )
    return {
        "median_error_percent": median,
        "median_error_of_decodes_percent": statistics.median(decodes) if decodes else None,
        "worst_error_percent": max(errors),
        "chosen_well": good,
        "holds": median <= GATE_MEDIAN and good >= GATE_CHOSEN,
        "cells": cells,
    }


def show(each: dict[str, Any]) -> None:
    what = f"{each['batch']:3} x {each['context']:5}" if "batch" in each else f"chunk {each['start']:5}"
    parts = "  ".join(f"{name} {1e3 * seconds:.1f}" for name, seconds in each["parts_s"].items())
    click.echo(
        f"{what} {each['layout']:>4}: measured {1e3 * each['measured_s']:7.2f} ms, predicted"
        f" {1e3 * each['predicted_s']:7.2f} ({100 * each['error']:+5.1f} %)  {parts}"
    )


# ---- the run


def key(each: dict[str, Any]) -> tuple[int, ...]:
    return each.get("batch", 0), each.get("context", 0), each.get("start", 0), TOUR.index(each["layout"])


def measure(
    folder: Path, ranks: int, batches: Sequence[int], contexts: Sequence[int], *, chunks: bool
) -> Iterator[dict[str, Any]]:
    cells = [(b, c) for b in batches for c in contexts if b * c <= MOST_TOKENS]
    most = max((b * (c + 1024) for b, c in cells), default=2 * PROMPT)
    config = EngineConfig(
        ranks=ranks,
        layout=TOUR[0],
        kv_pages=-(-most // 16) + 64,
        scheduler=SchedulerConfig(
            copy_share=1.0, copy_bytes_per_step=1 << 28, rebalance=False, replicas="keep"
        ),
    )
    deployment = open_deployment(folder, config)
    watch = Watch(float("inf"))
    with Engine(deployment, on_step=watch) as engine:
        for batch, context in cells:
            yield from decode_lines(engine, watch, batch, context)
        if chunks:
            yield from chunk_lines(engine, watch)


@click.command(help=__doc__)
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--json", "json_file", type=click.Path(path_type=Path))
@click.option("--profile", default="cpu", show_default=True, help="A profile's name or file.")
@click.option("--batches", default="1,4,16,64", show_default=True)
@click.option("--contexts", default="128,512,2048", show_default=True)
@click.option("--chunks/--no-chunks", default=True, help="Chunks of prompts too.")
@click.option("--ranks", default=2, show_default=True)
def main(
    folder: Path, json_file: Path | None, profile: str, batches: str, contexts: str, chunks: bool, ranks: int
) -> None:
    state = idleness()
    warn_if_busy(state)
    config = EngineConfig(ranks=ranks, layout=TOUR[0])
    deployment = open_deployment(folder, config)
    cost = cost_model(deployment.checkpoint.spec, deployment.config, load_profile(profile))
    lines = {}
    if json_file is not None and json_file.exists():
        lines = {key(each): priced(each, cost) for each in json.loads(json_file.read_text())["lines"]}
    numbers = [[int(x) for x in text.split(",") if x] for text in (batches, contexts)]
    if numbers[0] or chunks:
        for each in measure(folder, ranks, *numbers, chunks=chunks):
            lines[key(each)] = priced(each, cost)
            show(lines[key(each)])
    found = [lines[at] for at in sorted(lines)]
    verdict = judged(found)
    for cell in verdict["cells"]:
        click.echo(
            "{batch:3} x {context:5}: chosen {chosen}, best {best}, {above_best:.1%} above".format(**cell)
        )
    click.echo(
        f"median error {verdict['median_error_percent']:.1f} %, chosen well in {verdict['chosen_well']:.0%}:"
        f" {'holds' if verdict['holds'] else 'MISSED'}"
    )
    if json_file is not None:
        data = {
            **provenance(),
            "idleness": state,
            "ranks": ranks,
            "profile": str(profile),
            **verdict,
            "lines": found,
        }
        json_file.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
