"""How fast the simulator is and what memory it takes: a drain of RL rollouts, a trace of conversations, a decision.

python -m bench.sim_speed --trace azure2023_conv.csv --json bench/results/sim_speed.json
"""

from __future__ import annotations

import json
import resource
import time
from pathlib import Path
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


def decision_s(deployed: SimDeployment, num_requests: int, repeats: int = 50) -> float:
    """Median seconds of one question with `num_requests` of many lengths, a quarter of them waiting, and more coming;
    every layout has room for what runs."""
    policy = PredictivePolicy(deployed.cost, deployed.limits())
    lengths = [60 + 37 * number % 600 for number in range(num_requests)]
    questions = [
        Load(
            step=1000 + number,
            lengths=lengths[num_requests // 4 :],
            outputs=lengths[num_requests // 4 :],
            prompts=[],
            waiting=lengths[: num_requests // 4],
            memory_bound=False,
            target="tp",
            arrived=[Arrived(1000 + number - ago // 2, lengths[ago]) for ago in range(63, -1, -1)],
            decode_s=0.03,
        )
        for number in range(repeats)
    ]
    times = []
    for question in questions:
        begin = time.perf_counter()
        decision = policy.decide(question)
        times.append(time.perf_counter() - begin)
        assert decision is not None
        assert set(decision.predicted) == set(LAYOUTS), "every layout has room"
    return sorted(times)[repeats // 2]


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
    took = decision_s(deployed, 2000)
    print(f"a decision with 2000 requests: {took * 1e3:.2f} ms (bound {DECISION_BOUND_S * 1e3:.0f} ms)")
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
