"""What storing KV in fewer bits does to logits: python -m bench.kv_dtype [DIR] [--json FILE]

Scenes of the demo's kind of text, of which the last tokens are decoded teacher-forced, with KV in float32, bfloat16
and fp8 and everything else in float32: |logit - its float32 logit| over all tokens and the vocabulary, how often the
best token is the same, and what the text costs in nats a token.
"""

from __future__ import annotations

import json
import random
import sys
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import torch
from splash_cpu.attention import CpuAttention

from bench.machine import provenance
from splash.core.config import DEMO, EngineConfig
from splash.core.params import SamplingParams
from splash.core.request import Request
from splash.engine.deployment import Deployment, open_deployment
from splash.engine.workload import scene
from splash.exec.rank import load
from splash.exec.start import WorkerArgs
from splash.exec.worker import Worker
from splash.hal.inproc import InProcessBackend
from splash.hal.threads import ThreadCommunicator, run_ranks
from splash.sched.step import ManualClock

NUM_SCENES, SCENE_CHARS, NUM_DECODED = 12, 2400, 64


@dataclass(frozen=True, slots=True)
class Effect:
    """Of one type, against float32."""

    kv_dtype: str
    kv_bytes_per_token: int
    max_difference: float
    mean_difference: float
    same_best: float
    """Share of tokens whose best logit is the same token's."""
    nats_per_token: float


def logits_of(deployment: Deployment, texts: list[tuple[int, ...]]) -> torch.Tensor:
    """[texts, NUM_DECODED, vocab] fp32: before each of the last tokens of each text, on one rank."""
    backend = deployment.backend
    assert deployment.config.dtype is not None
    args = WorkerArgs(
        folder=str(deployment.checkpoint.folder),
        spec=deployment.checkpoint.spec,
        memory=deployment.memory,
        dtype=deployment.config.dtype,
        max_positions=deployment.max_model_len + 1,
    )
    seen: dict[int, list[torch.Tensor]] = defaultdict(list)

    def observe(requests: list[int], logits: torch.Tensor) -> None:
        for request, row in zip(requests, logits, strict=True):
            seen[request].append(row.clone())

    def rank(comm: ThreadCommunicator) -> None:
        weights, pool = load(comm, backend, args)
        worker = Worker(comm=comm, backend=backend, args=args, weights=weights, pool=pool, observe=observe)
        scheduler = deployment.scheduler(clock=ManualClock(), emit=lambda event: None)
        for number, ids in enumerate(texts):
            params = SamplingParams(max_tokens=NUM_DECODED, ignore_eos=True)
            scheduler.add(Request(number, ids[:-NUM_DECODED], params), ids[-NUM_DECODED:])
        while (plan := scheduler.schedule()) is not None:
            scheduler.update(worker.execute(plan))
            worker.copy(plan.copies)

    run_ranks(1, rank, timeout_s=600.0)
    return torch.stack([torch.stack(seen[number]) for number in range(len(texts))])


def measure(folder: Path) -> list[Effect]:
    rng, effects = random.Random(0), []
    scenes = [scene(rng, SCENE_CHARS) for _ in range(NUM_SCENES)]
    exact: torch.Tensor | None = None
    for kv_dtype in ("float32", "bfloat16", "fp8"):
        config = EngineConfig(ranks=1, layout="tp", kv_dtype=kv_dtype)
        deployment = open_deployment(folder, config, backend=InProcessBackend(attention=CpuAttention()))
        texts = [deployment.token_ids(text) for text in scenes]
        logits = logits_of(deployment, texts)
        exact = logits if exact is None else exact
        difference = (logits - exact).abs()
        told = torch.tensor([ids[-NUM_DECODED:] for ids in texts])
        effects.append(
            Effect(
                kv_dtype,
                deployment.memory.pages.token_bytes,
                float(difference.max()),
                float(difference.mean()),
                float((logits.argmax(-1) == exact.argmax(-1)).float().mean()),
                float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), told.flatten())),
            )
        )
    return effects


@click.command(help=__doc__)
@click.argument("folder", required=False, default=DEMO, type=click.Path(path_type=Path))
@click.option("--json", "json_file", type=click.Path(path_type=Path))
def main(folder: Path, json_file: Path | None) -> None:
    torch.set_num_threads(1)
    effects = measure(folder)
    print("KV         B/token   max |Δ|   mean |Δ|   same best   nats/token")
    for e in effects:
        print(
            f"{e.kv_dtype:9} {e.kv_bytes_per_token:8} {e.max_difference:9.2e} {e.mean_difference:10.2e}"
            f" {e.same_best:11.2%} {e.nats_per_token:12.4f}"
        )
    if json_file is not None:
        shape = {"scenes": NUM_SCENES, "scene_chars": SCENE_CHARS, "decoded_tokens": NUM_DECODED}
        found = {**provenance(), **shape, "effects": [asdict(effect) for effect in effects]}
        json_file.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
