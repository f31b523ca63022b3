"""What a step costs beside its forward pass: python -m bench.overhead DIR [--json FILE]

Two measurements. *Engine*: wall time from step to step less the forward pass (sampling and messages, and what of the
engine's work does not lie beside that pass), while all rows decode, against the bound of 0.5 ms + 60 µs a request.
*Scheduler*: `schedule`, `prepare` and `update` alone at 1,000 steady decodes, over an executor that does nothing.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import click

from bench.load import Recorder, decode_rows, open_engine, random_prompts
from bench.machine import idleness, provenance, warn_if_busy
from splash.core.config import SchedulerConfig
from splash.core.events import Event
from splash.core.params import SamplingParams
from splash.core.request import Request
from splash.engine.percentiles import percentile
from splash.kv.geometry import PoolGeometry
from splash.kv.sections import Field, page_format
from splash.kv.slots import MemoryPlan, ShardFormat
from splash.layout.holders import Topology
from splash.sched.batch import RowBytes
from splash.sched.scheduler import Scheduler
from splash.sched.step import ManualClock, StepPlan, StepResult

BOUND_BASE_S, BOUND_REQUEST_S = 0.5e-3, 60e-6
SCHEDULER_BOUND_S = 1e-3


class NullExecutor:
    """Answers every plan at once: token 7 for each row that samples."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}
        self._result = StepResult(-1)

    def submit(self, plan: StepPlan) -> None:
        for request in plan.gone:
            self._known.pop(request, None)
        for admit in plan.admits:
            self._known[admit.request] = len(admit.tokens)
        count = len(plan.decodes) + sum(c.start + c.count == self._known[c.request] for c in plan.chunks)
        self._result = StepResult(plan.step, (7,) * count, tuple(c.id for c in plan.copies))

    def collect(self) -> StepResult:
        return self._result

    def close(self) -> None:
        """Nothing to end."""


def measure_scheduler(num_requests: int = 1000, steps: int = 400, layout: str = "dop") -> dict[str, Any]:
    """Seconds of each part of a step with `num_requests` steady decodes; grants come as blocks fill up."""
    pages = page_format([[Field("latent", 576, 2, "bfloat16")]] * 2, 16)
    shards = ShardFormat((), 8 * pages.page_bytes)
    geometry = PoolGeometry(2 * 8 + 1 + 80 * num_requests, pages.page_bytes, 2, shards.num_bytes)
    clock, events = ManualClock(), list[Event]()
    scheduler = Scheduler(
        memory=MemoryPlan(pages, shards, geometry),
        topo=Topology(2, 1),
        config=SchedulerConfig(max_running=num_requests, token_budget=8192, max_chunk=8192),
        rows=RowBytes(16, 2),
        target=layout,
        policy=None,
        clock=clock,
        emit=events.append,
    )
    executor = NullExecutor()
    for number in range(num_requests):
        prompt = (1,) * (64 + number % 16)
        scheduler.add(Request(number, prompt, SamplingParams(max_tokens=4 * steps)))
    parts: dict[str, list[float]] = {"schedule": [], "prepare": [], "update": [], "total": []}
    while len(parts["total"]) < steps:
        t0 = time.perf_counter()
        plan = scheduler.schedule()
        t1 = time.perf_counter()
        assert plan is not None
        executor.submit(plan)
        t2 = time.perf_counter()
        scheduler.prepare()
        t3 = time.perf_counter()
        result = executor.collect()
        t4 = time.perf_counter()
        scheduler.update(result)
        t5 = time.perf_counter()
        clock.time_s += 0.02
        if len(plan.decodes) == num_requests and not plan.chunks:
            times = (t1 - t0, t3 - t2, t5 - t4)
            for name, value in zip(parts, (*times, sum(times)), strict=True):
                parts[name].append(value)
    return {
        "decodes": num_requests,
        "layout": layout,
        **{f"{name}_s": {"p50": median(v), "p95": percentile(v, 95)} for name, v in parts.items()},
        "bound_s": SCHEDULER_BOUND_S,
    }


def measure_engine(folder: Path, counts: Sequence[int], *, tokens: int) -> list[dict[str, Any]]:
    """Wall time from step to step less the forward pass, at each number of requests, in `tp`."""
    found = []
    recorder = Recorder()
    with open_engine(folder, layout="tp", max_running=max(counts), sinks=(recorder,)) as engine:
        for count in counts:
            recorder.clear()
            prompts = random_prompts(count, 96, vocab_size=engine.deployment.vocab_size, seed=count)
            for _ in engine.generate(prompts, SamplingParams(max_tokens=tokens, ignore_eos=True)):
                pass
            steps = decode_rows(recorder.steps, count)
            beside = [b.t - a.t - b.forward_s for a, b in pairwise(steps)]
            bound = BOUND_BASE_S + BOUND_REQUEST_S * count
            found.append(
                {
                    "requests": count,
                    "steps": len(steps),
                    "beside_s": {"p50": median(beside), "p95": percentile(beside, 95)},
                    "boundary_s": {"p50": median([s.boundary_s for s in steps])},
                    "forward_s": {"p50": median([s.forward_s for s in steps])},
                    "bound_s": bound,
                    "within": median(beside) <= bound,
                }
            )
    return found


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), required=False)
@click.option("--json", "json_file", type=click.Path(path_type=Path))
@click.option("--counts", default="1,16,64", show_default=True)
@click.option("--tokens", default=100, show_default=True, help="Output tokens of a request.")
def main(folder: Path | None, json_file: Path | None, counts: str, tokens: int) -> None:
    """Without FOLDER (a bench checkpoint) only the scheduler is measured."""
    state = idleness()
    warn_if_busy(state)
    data: dict[str, Any] = {**provenance(), "idleness": state, "scheduler": measure_scheduler()}
    total = data["scheduler"]["total_s"]
    print(
        f"scheduler, 1000 decodes: p50 {total['p50'] * 1e3:.3f} ms, p95 {total['p95'] * 1e3:.3f} ms (bound 1 ms)"
    )
    if folder is not None:
        data["engine"] = measure_engine(folder, [int(c) for c in counts.split(",")], tokens=tokens)
        for row in data["engine"]:
            print(
                f"{row['requests']:3} requests: beside the forward pass p50 {row['beside_s']['p50'] * 1e3:.3f} ms,"
                f" p95 {row['beside_s']['p95'] * 1e3:.3f} ms (bound {row['bound_s'] * 1e3:.2f} ms),"
                f" forward {row['forward_s']['p50'] * 1e3:.2f} ms"
            )
    if json_file is not None:
        json_file.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
