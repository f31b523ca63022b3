"""What a live switch costs: python -m bench.switch DIR --json FILE

16 requests decode while the target goes through all 20 ordered pairs of layouts, round after round, at two contexts.
A boundary runs from the end of a step on its last rank to the start of the next forward pass on its first rank, plus
what that first step takes more than is typical of its layout; a flip is a boundary at which a request flips. Also:
throughput while copies run against steady throughput, and what draining and restarting in the new layout costs.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from threading import Condition
from typing import Any

import click

from bench.load import open_engine, random_prompts
from bench.machine import idleness, provenance, warn_if_busy
from splash.core.events import Event, RunFinished, StepDone, SwitchDone, TargetChanged
from splash.core.params import SamplingParams
from splash.engine.client import Engine, Stream
from splash.engine.percentiles import spread
from splash.engine.report import boundaries, switch_cost
from splash.layout.layouts import LAYOUTS

TARGET_SHARE = 0.0051
"""Of a decode step: SPLASH's figure for a prefill step, here asked of decode."""
SETTLE_STEPS = 8
"""Steady steps between two switches."""
PATIENCE_S = 600.0


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
    """A sink that keeps steps and switches, and lets another thread wait for them."""

    def __init__(self) -> None:
        self.steps: list[StepDone] = []
        self.switches: list[SwitchDone] = []
        self.targets: list[TargetChanged] = []
        self._changed = Condition()
        self._ended: RunFinished | None = None

    def __call__(self, event: Event) -> None:
        kept = {StepDone: self.steps, SwitchDone: self.switches, TargetChanged: self.targets}
        with self._changed:
            if type(event) in kept:
                kept[type(event)].append(event)  # type: ignore[attr-defined]
            if isinstance(event, RunFinished):
                self._ended = event
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


def measure(folder: Path, context: int, *, rows: int, rounds: int, ranks: int) -> dict[str, Any]:
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
    restart_s = measure_restart(folder, tokens, kv_pages=kv_pages, ranks=ranks, **options)
    return summary(progress.steps, switches, restart_s, context=context, rows=rows)


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


def summary(
    steps: Sequence[StepDone], switches: Sequence[SwitchDone], restart_s: float, *, context: int, rows: int
) -> dict[str, Any]:
    full = [s for s in steps if s.decode_rows == rows and not s.prefill_rows]
    cost = switch_cost(full)
    staging = staging_throughput(full, switches)
    live_s = [lost_seconds(full, s) for s in switches]
    return {
        "context": context,
        "requests": rows,
        "switch_cost": cost,
        "within": cost["excess_share"] is not None and cost["excess_share"] <= TARGET_SHARE,
        "staging_throughput_share": staging,
        "lost_request_s": {
            "live_mean": rows * mean(live_s),
            "drain_and_restart": rows * restart_s,
            "ratio": restart_s / max(1e-9, mean(live_s)),
        },
        "pairs": [pair_summary(full, switches, pair) for pair in all_pairs(list(LAYOUTS))],
    }


def pair_summary(
    steps: Sequence[StepDone], switches: Sequence[SwitchDone], pair: tuple[str, str]
) -> dict[str, Any]:
    own = [s for s in switches if (s.old, s.new) == pair]
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
        "staging_throughput_share": staging_throughput(steps, own),
    }


def _periods(steps: Sequence[StepDone]) -> dict[int, float]:
    """Wall seconds of each step that follows another: boundary and forward pass."""
    return {b.step: b.t - a.t for a, b in pairwise(steps) if b.step == a.step + 1}


def _window(switch: SwitchDone) -> range:
    """The steps from the change of the target, at its boundary, until the switch was done."""
    return range(switch.step - switch.steps, switch.step + 1)


def _steady(periods: dict[int, float], switch: SwitchDone) -> float:
    """The typical period before the switch began, in the old layout."""
    first = _window(switch).start
    return median([periods[i] for i in range(first - SETTLE_STEPS + 1, first) if i in periods])


def staging_throughput(steps: Sequence[StepDone], switches: Sequence[SwitchDone]) -> float | None:
    """Tokens per second in the steps of the old layout while it is being left, over those before."""
    periods, mixes = _periods(steps), {s.step: {n for n, r in s.rows_by_layout.items() if r} for s in steps}
    steady = actual = 0.0
    for switch in switches:
        for step in _window(switch):
            if step in periods and mixes[step] == {switch.old}:
                steady += _steady(periods, switch)
                actual += periods[step]
    return steady / actual if actual else None


def lost_seconds(steps: Sequence[StepDone], switch: SwitchDone) -> float:
    """Time that the switch took from its requests: what the steps from the change of the target to the first steady
    one took beyond the old layout's (until the flips) or the new layout's period."""
    periods, by_step = _periods(steps), {s.step: s for s in steps}
    after = [periods[i] for i in range(switch.step + 2, switch.step + SETTLE_STEPS) if i in periods]
    new, old = median(after), _steady(periods, switch)
    lost = 0.0
    for step in range(_window(switch).start, switch.step + 2):
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
def main(folder: Path, json_file: Path | None, contexts: str, requests: int, rounds: int, ranks: int) -> None:
    """FOLDER is a checkpoint of `python -m bench.checkpoint`."""
    state = idleness()
    warn_if_busy(state)
    results: list[dict[str, Any]] = []
    for context in map(int, contexts.split(",")):
        results.append(measure(folder, context, rows=requests, rounds=rounds, ranks=ranks))
        show(results[-1])
        if json_file is not None:  # after every context: the next one may take long
            first = {"switch_cost": results[0]["switch_cost"], "pairs": results[0]["pairs"]}
            data = {**provenance(), "idleness": state, "ranks": ranks, **first, "contexts": results}
            json_file.write_text(json.dumps(data, indent=1) + "\n")


def show(result: dict[str, Any]) -> None:
    cost, lost = result["switch_cost"], result["lost_request_s"]
    print(
        f"context {result['context']}: {cost['flips']} boundaries with flips, step {cost['step_s_p50'] * 1e3:.2f} ms"
    )
    for name in ("flip_s", "null_s"):
        print(f"  {name}: p50 {cost[name]['p50'] * 1e3:.3f} ms, p95 {cost[name]['p95'] * 1e3:.3f} ms")
    share = f"{cost['excess_share']:.3%} of a step (bound {TARGET_SHARE:.2%})"
    print(f"  a flip costs {cost['excess_s'] * 1e6:.0f} µs, {share}")
    print(f"  throughput while staging: {result['staging_throughput_share']:.3f} of steady (bound 0.95)")
    print(
        f"  lost request-seconds a switch: live {lost['live_mean']:.3f}, drain and restart"
        f" {lost['drain_and_restart']:.1f} ({lost['ratio']:.0f} x)"
    )
    for pair in result["pairs"]:
        excess = "–" if pair["excess_s"] is None else f"{pair['excess_s'] * 1e6:7.0f} µs"
        print(
            f"  {pair['from']:>3} → {pair['to']:<3}: {pair['flips']:3} flips, excess {excess},"
            f" {pair['steps'] or 0:5.1f} steps, {(pair['bytes_received'] or 0) / 2**20:7.1f} MiB"
        )


if __name__ == "__main__":
    sys.exit(main())
