"""How fast the simulator is and what memory it takes: a drain of RL rollouts, a trace of conversations, a decision.

python -m bench.sim_speed --trace azure2023_conv.csv --json bench/results/sim_speed.json
"""

from __future__ import annotations

import json
import resource
import time
from pathlib import Path
from statistics import median
from typing import Any

import click

from bench.machine import idleness, provenance, warn_if_busy
from splash.layout.layouts import LAYOUTS
from splash.sched.arriving import Arrived
from splash.sched.policy import Load
from splash.sched.predictive import PredictivePolicy
from splash.sim.deployment import SimDeployment, deploy
from splash.sim.modes import AUTO, simulate
from splash.sim.presets import choose
from splash.sim.traces import load

BOUND_S = 20.0
BOUND_BYTES = 1e9
DECISION_BOUND_S = 1e-3
NUM_REQUESTS = 2000
QUESTIONS = 50
COPY_BYTES_PER_S = 1e9


def deployment(model: str) -> SimDeployment:
    choice = choose(model, None)
    return deploy(model, choice.model.spec, choice.profile, choice.settings)


def timed_run(deployed: SimDeployment, workload: str, seed: int) -> dict[str, Any]:
    """One run under the policy; the peak of memory is the process's so far."""
    requests = load(workload, seed=seed)
    run = simulate(deployed, requests, AUTO, stopwatch=time.perf_counter)
    return {
        "workload": requests.name,
        "requests": run.num_requests,
        "output_tokens": run.output_tokens,
        "steps": run.steps,
        "decisions": run.decisions,
        "seconds": run.wall_s,
        "bound_s": BOUND_S,
        "max_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "bound_bytes": BOUND_BYTES,
    }


def decoding(num_requests: int) -> list[Load]:
    """Questions about requests that all decode, of many lengths."""
    lengths = _lengths(num_requests)
    return [
        Load(
            step=1000 + number,
            lengths=lengths,
            outputs=[length // 2 for length in lengths],
            prompts=[],
            waiting=[],
            memory_bound=False,
            target="tp",
            copy_bytes_per_s=COPY_BYTES_PER_S,
            decode_s=0.03,
        )
        for number in range(QUESTIONS)
    ]


def crowded(num_requests: int) -> list[Load]:
    """Questions about everything at once: some requests much longer than the others, so that striped targets count
    too, a quarter of them waiting, prompts under way, and more to come."""
    lengths = [n + 8000 * (number % 150 == 0) for number, n in enumerate(_lengths(num_requests))]
    running = lengths[num_requests // 4 :]
    return [
        Load(
            step=1000 + number,
            lengths=running,
            outputs=[length // 2 for length in running],
            prompts=[(512, 300), (0, 900)],
            waiting=lengths[: num_requests // 4],
            memory_bound=False,
            target="tp",
            copy_bytes_per_s=COPY_BYTES_PER_S,
            arrived=[Arrived(1000 + number - ago // 2, lengths[ago]) for ago in range(63, -1, -1)],
            decode_s=0.03,
        )
        for number in range(QUESTIONS)
    ]


def _lengths(num_requests: int) -> list[int]:
    return [60 + 37 * number % 600 for number in range(num_requests)]


def decision_s(deployed: SimDeployment, questions: list[Load]) -> float:
    """Median seconds of a question; every layout has room for what runs."""
    policy = PredictivePolicy(deployed.cost, deployed.limits())
    times = []
    for question in questions:
        begin = time.perf_counter()
        decision = policy.decide(question)
        times.append(time.perf_counter() - begin)
        assert decision is not None
        assert set(decision.predicted) == set(LAYOUTS), "every layout has room"
    return median(times)


@click.command()
@click.option("--model", default="deepseek-v3.2", show_default=True)
@click.option("--trace", type=click.Path(path_type=Path, exists=True), help="A trace to serve too.")
@click.option("--seed", default=9, show_default=True, help="Of rl-drain; 9 draws 4.7 million output tokens.")
@click.option("--json", "json_file", type=click.Path(path_type=Path))
def main(model: str, trace: Path | None, seed: int, json_file: Path | None) -> None:
    """Needs one idle core."""
    state = idleness()
    warn_if_busy(state)
    deployed = deployment(model)
    took = {ask.__name__: decision_s(deployed, ask(NUM_REQUESTS)) for ask in (decoding, crowded)}
    for name, seconds in took.items():
        bound = f"bound {DECISION_BOUND_S * 1e3:.0f} ms"
        print(f"a decision with {NUM_REQUESTS} requests, {name}: {seconds * 1e3:.2f} ms ({bound})")
    runs = [timed_run(deployed, name, seed) for name in ("rl-drain", *([str(trace)] if trace else []))]
    for run in runs:
        print(
            f"{run['workload']}: {run['requests']} requests, {run['output_tokens']} tokens, {run['steps']} steps in"
            f" {run['seconds']:.1f} s (bound {BOUND_S:.0f} s), {run['max_rss_bytes'] / 1e6:.0f} MB"
        )
    if json_file is not None:
        data = {
            **provenance(),
            "idleness": state,
            "model": model,
            "decision_s": took,
            "decision_bound_s": DECISION_BOUND_S,
            "runs": runs,
        }
        json_file.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
