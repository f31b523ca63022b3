"""What a live switch costs: python -m bench.switch DIR --json FILE [--samples FILE]

16 requests decode while the target goes through all 20 ordered pairs of layouts, round after round, at two contexts.
A boundary runs from the end of a step on its last rank to the start of the next forward pass on its first rank, plus
what that first step takes more than is typical of its layout; a flip is a boundary at which a request flips. Also:
throughput while copies run against steady throughput, and what draining and restarting in the new layout costs.

With `--samples FILE` every run is added to that file and the figures are those of all runs in it, so a measurement
can be made in parts.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from threading import Condition
from typing import Any, NamedTuple

import click
import numpy as np

from bench.load import open_engine, random_prompts
from bench.machine import idleness, provenance, warn_if_busy
from splash.core.events import CopyProgress, Event, RunFinished, StepDone, SwitchDone, from_json, to_json
from splash.core.params import SamplingParams
from splash.engine.client import Engine
from splash.engine.loop import PLANS_AHEAD
from splash.engine.percentiles import spread
from splash.engine.report import Boundary, boundaries, cost_of
from splash.engine.streams import Stream
from splash.layout.layouts import LAYOUTS

TARGET_SHARE = 0.0051
"""Of a decode step: SPLASH's figure for a prefill step, here asked of decode."""
SETTLE_STEPS = 8
"""Steady steps between two switches."""
PATIENCE_S = 600.0
RESAMPLES = 2000
"""Of the bootstrap: how often the boundaries are drawn again."""


def all_pairs(names: Sequence[str]) -> list[tuple[str, str]]:
    """Every ordered pair once, each beginning where the one before ended (an Eulerian circuit of the names)."""
    left = {name: [other for other in names if other != name] for name in names}
    circuit: list[str] = []
    path = [names[0]]
    while path:
        if left[path[-1]]:
            path.append(left[path[-1]].pop())
        else:
            circuit.append(path.pop())
    return list(pairwise(reversed(circuit)))


class Progress:
    """A sink that keeps steps, switches and when copies ran, and lets another thread wait for the former."""

    def __init__(self) -> None:
        self.steps: list[StepDone] = []
        self.switches: list[SwitchDone] = []
        self.copying: list[int] = []
        """Steps whose results acknowledged copies: these ran in their time."""
        self._changed = Condition()
        self._ended: RunFinished | None = None

    def __call__(self, event: Event) -> None:
        with self._changed:
            match event:
                case StepDone():
                    self.steps.append(event)
                case SwitchDone():
                    self.switches.append(event)
                case RunFinished():
                    self._ended = event
                case CopyProgress(step=step):
                    self.copying.append(step - 1 - PLANS_AHEAD)  # told beside the next plan
                    return
                case _:
                    return  # a flip has many events, and to wake somebody takes time
            self._changed.notify_all()

    def wait(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: condition() or self._ended is not None, PATIENCE_S)
            if not condition():
                raise RuntimeError(f"the engine hangs, or ended: {self._ended}")

    def wait_for_steps(self, count: int, rows: int) -> None:
        """Until `count` more steps have decoded `rows` requests."""
        first = len(self.steps)
        self.wait(lambda: sum(s.decode_rows == rows for s in self.steps[first:]) >= count)


def walk_pairs(engine: Engine, progress: Progress, rows: int) -> list[SwitchDone]:
    """Through all pairs once, from the first layout back to it."""
    done = []
    for _, new in all_pairs(list(LAYOUTS)):
        progress.wait_for_steps(SETTLE_STEPS, rows)
        count = len(progress.switches)
        engine.switch(new)
        progress.wait(lambda count=count: len(progress.switches) > count)
        done.append(progress.switches[-1])
    progress.wait_for_steps(SETTLE_STEPS, rows)
    return done


def start_requests(engine: Engine, progress: Progress, rows: int, context: int, seed: int) -> list[Stream]:
    """`rows` requests with `context` prompt tokens, all decoding when this returns."""
    prompts = random_prompts(rows, context, vocab_size=engine.deployment.vocab_size, seed=seed)
    room = engine.deployment.max_model_len - context
    streams = [engine.submit(p, SamplingParams(max_tokens=room, ignore_eos=True)) for p in prompts]
    progress.wait_for_steps(SETTLE_STEPS, rows)
    return streams


def end_requests(streams: Iterable[Stream]) -> list[tuple[int, ...]]:
    """Aborts them; all their tokens, prompts included."""
    streams = list(streams)
    for stream in streams:
        stream.abort()
    return [(*stream.request.prompt, *stream.result().token_ids) for stream in streams]


@dataclass(frozen=True, slots=True)
class Run:
    """What one engine went through at one context, and what ending it and starting another took (if measured)."""

    context: int
    requests: int
    steps: tuple[StepDone, ...]
    switches: tuple[SwitchDone, ...]
    copying: tuple[int, ...]
    """Steps in whose time copies ran."""
    restart_s: float | None
    idleness: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {
            "context": self.context,
            "requests": self.requests,
            "steps": [to_json(s) for s in self.steps],
            "switches": [to_json(s) for s in self.switches],
            "copying": self.copying,
            "restart_s": self.restart_s,
            "idleness": self.idleness,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Run:
        steps: Any = tuple(map(from_json, data["steps"]))
        switches: Any = tuple(map(from_json, data["switches"]))
        copying = tuple(data["copying"])
        return cls(
            data["context"], data["requests"], steps, switches, copying, data["restart_s"], data["idleness"]
        )

    def after(self, other: Run) -> Run:
        """Both as one: the steps of this one follow, with a gap in their numbers."""
        by = other.steps[-1].step + 2 * SETTLE_STEPS + 2
        steps = tuple(replace(s, step=s.step + by) for s in self.steps)
        switches = tuple(replace(s, step=s.step + by) for s in self.switches)
        copying = tuple(step + by for step in self.copying)
        return replace(
            other,
            steps=other.steps + steps,
            switches=other.switches + switches,
            copying=other.copying + copying,
            restart_s=self.restart_s if other.restart_s is None else other.restart_s,
        )


def measure(
    folder: Path, context: int, *, rows: int, rounds: int, ranks: int, restart: bool, state: dict[str, Any]
) -> Run:
    progress, switches = Progress(), list[SwitchDone]()
    longest = context + 2048
    options = {"max_model_len": longest, "token_budget": 2048, "max_chunk": 2048, "max_running": rows}
    kv_pages = 2 * rows * -(-(context + 1024) // 16)
    tokens: list[tuple[int, ...]] = []
    with open_engine(
        folder, ranks=ranks, layout="tp", kv_pages=kv_pages, sinks=(progress,), **options
    ) as engine:
        for number in range(rounds):
            streams = start_requests(engine, progress, rows, context, seed=number)
            switches += walk_pairs(engine, progress, rows)
            tokens = end_requests(streams)
            print(
                f"context {context}: round {number + 1} of {rounds}, now {len(tokens[0])} tokens", flush=True
            )
    restart_s = None
    if restart:
        restart_s = measure_restart(folder, tokens, kv_pages=kv_pages, ranks=ranks, **options)
    return Run(
        context,
        rows,
        tuple(progress.steps),
        tuple(switches),
        tuple(progress.copying),
        restart_s,
        state,
    )


def measure_restart(
    folder: Path, tokens: Sequence[tuple[int, ...]], *, kv_pages: int, ranks: int, **options: int
) -> float:
    """Seconds from ending the engine in `tp` until the same requests decode again in `dp`: start, load, prefill.
    The engine to be ended holds nothing, so ending it is cheaper here than it would be."""
    with open_engine(folder, ranks=ranks, layout="tp", kv_pages=kv_pages, **options) as engine:
        began = time.monotonic()
        engine.close()
    progress = Progress()
    with open_engine(
        folder, ranks=ranks, layout="dp", kv_pages=kv_pages, sinks=(progress,), **options
    ) as engine:
        streams = [engine.submit(t, SamplingParams(max_tokens=64, ignore_eos=True)) for t in tokens]
        progress.wait_for_steps(1, len(tokens))
        seconds = time.monotonic() - began
        end_requests(streams)
    return seconds


# ---- figures


def joined(runs: Iterable[Run]) -> list[Run]:
    """One run a context, in the order in which contexts come."""
    found: dict[int, Run] = {}
    for run in runs:
        found[run.context] = run.after(found[run.context]) if run.context in found else run
    return list(found.values())


def full_steps(run: Run) -> list[StepDone]:
    """Those in which all requests decode, and nothing else."""
    return [s for s in run.steps if s.decode_rows == run.requests and not s.prefill_rows]


def pooled_cost(runs: Sequence[Run]) -> dict[str, Any]:
    """`switch_cost` over all contexts, each boundary compared with its own context's steps; its two parts, and how well
    each is known."""
    found: list[Boundary] = [b for run in runs for b in boundaries(full_steps(run))]
    cost = cost_of(found, [s.forward_s for run in runs for s in full_steps(run)])
    return {
        **cost,
        "excess": asdict(compared(found, lambda b: b.cost_s)),
        "excess_between": asdict(compared(found, lambda b: b.between_s)),
        "excess_of_first_step": asdict(compared(found, lambda b: b.excess_s)),
    }


@dataclass(frozen=True, slots=True)
class Excess:
    """Seconds of some boundaries beyond others: the difference of the medians, and between what it lies with 95 %
    confidence (bootstrap, always the same)."""

    median_s: float
    low_s: float
    high_s: float


def compared(found: Sequence[Boundary], seconds: Callable[[Boundary], float]) -> Excess:
    """There must be boundaries of both kinds."""
    flip, null = ([seconds(b) for b in found if bool(b.flips) is flips] for flips in (True, False))
    return beyond(flip, null)


def beyond(some: Sequence[float], others: Sequence[float]) -> Excess:
    """`some` seconds beyond `others`."""
    draw = np.random.default_rng(0)
    medians = [np.median(draw.choice(part, (RESAMPLES, len(part))), axis=1) for part in (some, others)]
    low, high = np.percentile(medians[0] - medians[1], [2.5, 97.5])
    return Excess(median(some) - median(others), float(low), float(high))


def growth(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a flip costs at each longer context over the shortest: it must not grow."""
    first, *longer = sorted(results, key=lambda r: int(r["context"]))
    base = first["switch_cost"]["excess_s"]
    return [
        {
            "contexts": [first["context"], other["context"]],
            "excess_s": [base, other["switch_cost"]["excess_s"]],
            "ratio": other["switch_cost"]["excess_s"] / base if base else None,
        }
        for other in longer
    ]


def over_contexts(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each pair once: how often it was switched and flipped, and what a flip cost at each context."""
    return [
        {
            "from": same[0]["from"],
            "to": same[0]["to"],
            "switches": sum(pair["switches"] for pair in same),
            "flips": sum(pair["flips"] for pair in same),
            "excess_s": {r["context"]: pair["excess_s"] for r, pair in zip(results, same, strict=True)},
        }
        for same in zip(*(r["pairs"] for r in results), strict=True)
    ]


def summary(run: Run) -> dict[str, Any]:
    full, switches, rows = full_steps(run), run.switches, run.requests
    cost = pooled_cost([run])
    left = staged(full, switches, set(run.copying))
    live_s = [lost_seconds(full, s) for s in switches]
    return {
        "context": run.context,
        "requests": rows,
        "switch_cost": cost,
        "within": cost["excess_share"] is not None and cost["excess_share"] <= TARGET_SHARE,
        "staging_throughput": asdict(Throughput.of((s.before, s.beside + s.others) for s in left)),
        "copying_throughput": asdict(Throughput.of((s.before, s.beside) for s in left)),
        "copies_between": asdict(copies_between(full, set(run.copying))),
        "lost_request_s": {
            "live_mean": rows * mean(live_s),
            "drain_and_restart": None if run.restart_s is None else rows * run.restart_s,
        },
        "pairs": [pair_summary(run, full, pair) for pair in all_pairs(list(LAYOUTS))],
    }


def pair_summary(run: Run, steps: Sequence[StepDone], pair: tuple[str, str]) -> dict[str, Any]:
    """Of its `full_steps`."""
    own = [s for s in run.switches if (s.old, s.new) == pair]
    found = boundaries(steps)
    null = median([b.cost_s for b in found if not b.flips])
    flips = [b.cost_s for b in found if b.flips and any(b.step in _window(s) for s in own)]
    return {
        "from": pair[0],
        "to": pair[1],
        "switches": len(own),
        "flips": len(flips),
        "flip_s": spread(flips),
        "excess_s": median(flips) - null if flips else None,
        "steps": mean([s.steps for s in own]) if own else None,
        "bytes_received": mean([s.bytes_received for s in own]) if own else None,
        "outcomes": sorted({s.outcome for s in own}),
        "staging_throughput": asdict(
            Throughput.of((s.before, s.beside + s.others) for s in staged(steps, own, set(run.copying)))
        ),
    }


def _periods(steps: Sequence[StepDone]) -> dict[int, float]:
    """Wall seconds of each step that follows another: boundary and forward pass."""
    return {b.step: b.t - a.t for a, b in pairwise(steps) if b.step == a.step + 1}


def _window(switch: SwitchDone) -> range:
    """The steps from the change of the target, at its boundary, until the switch was done."""
    return range(switch.step - switch.steps, switch.step + 1)


def _before(periods: dict[int, float], switch: SwitchDone) -> list[float]:
    """The periods before the switch began, in the old layout."""
    first = _window(switch).start
    return [periods[i] for i in range(first - SETTLE_STEPS + 1, first) if i in periods]


class Staged(NamedTuple):
    """A switch while all its requests are still in the old layout: periods of steps, in seconds."""

    before: list[float]
    """Of the steps that came before it."""
    beside: list[float]
    """In whose time copies ran."""
    others: list[float]


def staged(
    steps: Sequence[StepDone], switches: Sequence[SwitchDone], copying: Collection[int]
) -> list[Staged]:
    """`copying`: steps in whose time copies ran."""
    periods, mixes = _periods(steps), {s.step: {n for n, r in s.rows_by_layout.items() if r} for s in steps}
    found = []
    for switch in switches:
        own = [i for i in _window(switch) if i in periods and mixes[i] == {switch.old}]
        beside = [periods[i] for i in own if i in copying]
        others = [periods[i] for i in own if i not in copying]
        found.append(Staged(_before(periods, switch), beside, others))
    return found


def copies_between(steps: Sequence[StepDone], copying: Collection[int]) -> Excess:
    """What copies take between two forward passes, which is where a port without a copy engine makes them."""
    kinds: tuple[list[float], list[float]] = [], []
    for boundary in boundaries(steps):
        if not boundary.flips:
            kinds[boundary.step in copying].append(boundary.between_s)
    others, beside = kinds
    return beyond(beside, others) if beside else Excess(0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Throughput:
    """Tokens per second in steps of switches over those of the steps before the same switches; None without steps.

    `share` is that of means, and lies between `low` and `high` with 95 % confidence (bootstrap over switches, always
    the same). `typical` is that of medians: it leaves out steps that lost their cores, but also what slows few steps.
    """

    share: float | None = None
    low: float | None = None
    high: float | None = None
    typical: float | None = None

    @classmethod
    def of(cls, parts: Iterable[tuple[list[float], list[float]]]) -> Throughput:
        """`parts`: of each switch the periods before it, and those of the steps that count."""
        parts = [(before, during) for before, during in parts if before and during]
        if not parts:
            return cls()
        steady = np.array([len(during) * mean(before) for before, during in parts])
        actual = np.array([sum(during) for _, during in parts])
        drawn = np.random.default_rng(0).integers(len(parts), size=(RESAMPLES, len(parts)))
        low, high = np.percentile(steady[drawn].sum(1) / actual[drawn].sum(1), [2.5, 97.5])
        typical = median([period / median(before) for before, during in parts for period in during])
        return cls(float(steady.sum() / actual.sum()), float(low), float(high), 1 / typical)


def lost_seconds(steps: Sequence[StepDone], switch: SwitchDone) -> float:
    """Time that the switch took from its requests: what the steps from the change of the target to the first steady
    one took beyond the old layout's (until the flips) or the new layout's mean period."""
    periods, by_step = _periods(steps), {s.step: s for s in steps}
    after = [periods[i] for i in range(switch.step + 1, switch.step + SETTLE_STEPS) if i in periods]
    new, old = mean(after), mean(_before(periods, switch))
    lost = 0.0
    for step in _window(switch):
        if step in periods:
            rows = by_step[step].rows_by_layout
            share = rows.get(switch.new, 0) / max(1, sum(rows.values()))
            lost += periods[step] - (share * new + (1 - share) * old)
    return lost


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--json", "json_file", type=click.Path(path_type=Path))
@click.option("--contexts", default="256,2048", show_default=True)
@click.option("--requests", default=16, show_default=True)
@click.option("--rounds", default=6, show_default=True, help="20 switches each.")
@click.option("--ranks", default=2, show_default=True)
@click.option("--samples", type=click.Path(path_type=Path), help="Add to these runs, and judge all of them.")
@click.option("--restart/--no-restart", default=True, help="Measure draining and restarting too.")
def main(
    folder: Path,
    json_file: Path | None,
    contexts: str,
    requests: int,
    rounds: int,
    ranks: int,
    samples: Path | None,
    restart: bool,
) -> None:
    """FOLDER is a checkpoint of `python -m bench.checkpoint`."""
    runs: list[Run] = []
    if samples is not None and samples.exists():
        try:
            runs = [Run.from_json(json.loads(line)) for line in samples.read_text().splitlines()]
        except (KeyError, ValueError) as error:
            raise click.UsageError(f"{samples} is not of this version ({error!r}); name a new file") from None
    for context in map(int, contexts.split(",")):
        state = idleness()
        warn_if_busy(state)
        options = {"rows": requests, "rounds": rounds, "ranks": ranks}
        runs.append(measure(folder, context, restart=restart, state=state, **options))
        if samples is not None:
            with samples.open("a") as out:
                out.write(json.dumps(runs[-1].to_json(), separators=(",", ":")) + "\n")
        report(runs, json_file, ranks)  # after every context: the next one may take long


def report(runs: Sequence[Run], json_file: Path | None, ranks: int) -> None:
    by_context = joined(runs)
    results = [summary(run) for run in by_context]
    pooled = pooled_cost(by_context)
    for result in results:
        show(result)
    print(f"pooled over contexts: {_cost_line(pooled)}")
    for row in growth(results):
        (first, other), (before, after) = row["contexts"], row["excess_s"]
        print(f"a flip: {before * 1e6:.0f} µs at context {first}, {after * 1e6:.0f} µs at {other}")
    if json_file is not None:
        data = {
            **provenance(),
            "ranks": ranks,
            "runs": [{"context": run.context, "idleness": run.idleness} for run in runs],
            "switch_cost": pooled,
            "growth": growth(results),
            "pairs": over_contexts(results),
            "contexts": results,
        }
        json_file.write_text(json.dumps(data, indent=1) + "\n")


def _cost_line(cost: dict[str, Any]) -> str:
    return f"a flip costs {_excess(cost, 'excess')} (bound {TARGET_SHARE:.2%})"


def _excess(cost: dict[str, Any], part: str) -> str:
    """`372 µs, 0.32 % of a step (95 %: -0.86 to 3.18 %)`"""
    middle, low, high = (cost[part][name] for name in ("median_s", "low_s", "high_s"))
    share, least, most = (100 * seconds / cost["step_s_p50"] for seconds in (middle, low, high))
    return f"{middle * 1e6:.0f} µs, {share:.2f} % of a step (95 %: {least:.2f} to {most:.2f} %)"


def show(result: dict[str, Any]) -> None:
    cost, lost = result["switch_cost"], result["lost_request_s"]
    print(
        f"context {result['context']}: {cost['flips']} boundaries with flips, step {cost['step_s_p50'] * 1e3:.2f} ms"
    )
    for name in ("flip_s", "null_s"):
        print(f"  {name}: p50 {cost[name]['p50'] * 1e3:.3f} ms, p95 {cost[name]['p95'] * 1e3:.3f} ms")
    print(f"  {_cost_line(cost)}")
    print(f"    between the forward passes {_excess(cost, 'excess_between')}")
    print(f"    of the first forward pass  {_excess(cost, 'excess_of_first_step')}")
    for name, when in (("staging", "while staging"), ("copying", "beside copies")):
        found = result[f"{name}_throughput"]
        print(
            f"  throughput {when}: {found['share']:.3f} of steady (95 %: {found['low']:.3f} to {found['high']:.3f};"
            f" by medians {found['typical']:.3f}; bound 0.95)"
        )
    excess = _excess({"excess": result["copies_between"], "step_s_p50": cost["step_s_p50"]}, "excess")
    print(f"    between the forward passes copies take {excess}")
    restart = "not measured" if lost["drain_and_restart"] is None else f"{lost['drain_and_restart']:.1f}"
    print(f"  lost request-seconds a switch: live {lost['live_mean']:.3f}, drain and restart {restart}")
    for pair in result["pairs"]:
        excess = "–" if pair["excess_s"] is None else f"{pair['excess_s'] * 1e6:7.0f} µs"
        print(
            f"  {pair['from']:>3} → {pair['to']:<3}: {pair['flips']:3} flips, excess {excess},"
            f" {pair['steps'] or 0:5.1f} steps, {(pair['bytes_received'] or 0) / 2**20:7.1f} MiB"
        )


if __name__ == "__main__":
    sys.exit(main())
