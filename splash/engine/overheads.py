"""What steps take beside their operations, measured by serving a random model: the part of a profile that no single
operation shows."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from splash.core.config import EngineConfig
from splash.core.params import SamplingParams
from splash.engine.client import Engine
from splash.engine.deployment import open_deployment
from splash.engine.pricing import cost_model
from splash.hw.cost import CostModel
from splash.hw.profile import HardwareProfile
from splash.layout.work import Work
from splash.sched.step import StepPlan, StepResult
from splash.sim.mirror import LengthMirror

CONFIG = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "vocab_size": 256,
    "hidden_size": 1024,
    "intermediate_size": 1024,
    "num_hidden_layers": 6,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "q_lora_rank": 384,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 64,
    "v_head_dim": 64,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 256,
    "n_shared_experts": 1,
    "first_k_dense_replace": 0,
    "n_group": 1,
    "topk_group": 1,
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "rope_interleave": True,
    "attention_bias": False,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}
"""config.json of the model that shows them: with all weights of a layer small, but none in a cache when it is its turn
(200 MB), as with larger models. What a layer does beside its products takes twice as long then as with warm caches."""
COUNTS = (1, 4, 16)
"""Requests that decode at a time."""
PROMPT, OUTPUT = 32, 64
UNCOUNTED = 8
"""Steps at the beginning of each count."""


@dataclass(frozen=True, slots=True)
class Overheads:
    """Seconds, as a profile's `[host]` has them."""

    step_s: float
    request_s: float
    layer_s: float


@dataclass(frozen=True, slots=True)
class Seen:
    """One step of decodes alone, after another."""

    work: Work
    forward_s: float
    beside_s: float
    """From the end of the forward pass before to the start of this one."""


def measured_overheads(folder: Path, profile: HardwareProfile, *, backend: str, ranks: int) -> Overheads:
    """Serves the checkpoint, as `CONFIG` says it; the machine should be idle."""
    deployment = open_deployment(folder, EngineConfig(ranks=ranks, backend=backend, layout="tp"))
    spec = deployment.checkpoint.spec
    cost = cost_model(spec, deployment.config, profile)
    mirror = LengthMirror(cost.keeps)
    steps: list[tuple[Work, StepResult]] = []

    def watch(plan: StepPlan, result: StepResult) -> None:
        steps.append((mirror.apply(plan)[0], result))

    with Engine(deployment, on_step=watch) as engine:
        for count in COUNTS:
            prompts = [tuple(2 + (n + place) % 99 for place in range(PROMPT)) for n in range(count)]
            for _ in engine.generate(prompts, SamplingParams(max_tokens=OUTPUT, ignore_eos=True)):
                pass
    by_count = {count: list(_alike(steps, count))[UNCOUNTED:] for count in COUNTS}
    return overheads(by_count, cost, num_layers=spec.num_layers)


def overheads(by_count: Mapping[int, Sequence[Seen]], cost: CostModel, *, num_layers: int) -> Overheads:
    """What the steps leave to explain: between forward passes a part for the step and one for each request, and within
    them what the operations do not take, divided by the layers. None is less than zero."""
    beside = {n: statistics.median(step.beside_s for step in steps) for n, steps in by_count.items()}
    least, most = min(beside), max(beside)
    request_s = max(0.0, (beside[most] - beside[least]) / (most - least))
    host = cost.profile.host
    left = [
        statistics.median(
            step.forward_s - cost.step_s(step.work) + host.step_overhead.value + n * _request_s(cost)
            for step in steps
        )
        for n, steps in by_count.items()
    ]
    return Overheads(
        step_s=max(0.0, beside[least] - least * request_s),
        request_s=request_s,
        layer_s=max(0.0, statistics.median(left) / num_layers),
    )


def _request_s(cost: CostModel) -> float:
    request = cost.profile.host.request_overhead
    return 0.0 if request is None else request.value


def _alike(steps: Sequence[tuple[Work, StepResult]], count: int) -> Iterator[Seen]:
    """Those of `count` decodes after others of as many."""
    for (before, last), (work, result) in pairwise(steps):
        if all(not w.prompts and w.num_rows == count for w in (before, work)):
            yield Seen(work, result.forward_s, result.started_s - last.ended_s)
