"""A decode step of sparse against dense attention by context: python -m bench.sparse [--json FILE]

One request on one rank, on a scaled-down DeepSeek-V3.2: its widths per token and its 2,048 chosen tokens are as
released, heads of attention and indexer are an eighth (16 and 8), hidden size a seventh, two layers with dense MLPs.
The dense model has the same weights without indexers. Pages hold random numbers, so no prompt is computed.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import click
import torch
from splash_cpu.attention import CpuAttention

from bench.checkpoint import VOCAB_SIZE, write_checkpoint
from bench.machine import idleness, provenance, warn_if_busy
from splash.core.params import SamplingParams
from splash.exec.rank import load
from splash.exec.start import WorkerArgs
from splash.exec.worker import Worker
from splash.hal.inproc import InProcessBackend
from splash.hal.protocol import PagedKV
from splash.hal.threads import ThreadCommunicator, run_ranks
from splash.kv.slots import plan_memory
from splash.layout.layouts import TP, Assignment
from splash.sched.step import Admit, PageGrant, StepPlan
from splash.spec.model import ModelSpec

CONTEXTS = (1024, 2048, 4096, 8192, 16384, 32768, 65536)
BLOCK_SIZE = 16
SHAPE: dict[str, Any] = {
    "architectures": ["DeepseekV32ForCausalLM"],
    "model_type": "deepseek_v32",
    "num_hidden_layers": 2,
    "first_k_dense_replace": 2,
    "index_n_heads": 8,
    "index_head_dim": 128,
    "index_topk": 2048,
    "max_position_embeddings": 131072,
}


class TimedAttention(CpuAttention):
    """Seconds spent in the choice of tokens and in attention, over all layers of a step."""

    def __init__(self) -> None:
        super().__init__()
        self.clear()

    def clear(self) -> None:
        self.select_s = self.attend_s = 0.0

    def select(
        self, q: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor, prepared: Any
    ) -> torch.Tensor:
        started = time.perf_counter()
        chosen = super().select(q, weights, keys, prepared)
        self.select_s += time.perf_counter() - started
        return chosen

    def attend(
        self, q: torch.Tensor, kv: PagedKV, prepared: Any, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        started = time.perf_counter()
        found = super().attend(q, kv, prepared, scale)
        self.attend_s += time.perf_counter() - started
        return found

    def attend_selected(
        self, q: torch.Tensor, kv: PagedKV, tokens: torch.Tensor, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        started = time.perf_counter()
        found = super().attend_selected(q, kv, tokens, scale)
        self.attend_s += time.perf_counter() - started
        return found


def measure(folder: Path, spec: ModelSpec, *, steps: int) -> list[dict[str, Any]]:
    """Decode steps at each context: the median, and within it the choice of tokens and the attention."""
    num_blocks = max(CONTEXTS) // BLOCK_SIZE + 2
    memory = plan_memory(spec, ranks=1, dtype="float32", block_size=BLOCK_SIZE, kv_pages=num_blocks)
    args = WorkerArgs(
        folder=str(folder), spec=spec, memory=memory, dtype="float32", max_positions=max(CONTEXTS) + 64
    )
    attention = TimedAttention()
    backend = InProcessBackend(attention=attention)

    def rank(comm: ThreadCommunicator) -> list[dict[str, Any]]:
        torch.set_num_threads(1)
        weights, pool = load(comm, backend, args)
        worker = Worker(comm=comm, backend=backend, args=args, weights=weights, pool=pool)
        first_page = memory.geometry.null_page + 1
        for context in CONTEXTS:
            worker.execute(_admission(context, first_page))
            kept = pool.bytes[first_page * memory.pages.page_bytes :].view(torch.float32)
            kept.normal_(generator=torch.Generator().manual_seed(context))
            rows.append({"context": context, **_steps(worker, attention, context, steps)})
        return rows

    rows: list[dict[str, Any]] = []
    return run_ranks(1, rank)[0]


def _admission(context: int, first_page: int) -> StepPlan:
    """A request of so many tokens, with pages for some more, in place of the one before."""
    tokens = tuple(i * 7919 % VOCAB_SIZE for i in range(context))
    blocks = range(-(-context // BLOCK_SIZE) + 1)
    return StepPlan(
        -1,
        gone=(0,),
        admits=(Admit(0, tokens, context, SamplingParams(), 0, Assignment(TP)),),
        grants=tuple(PageGrant(0, block, 0, 0, first_page + block) for block in blocks),
    )


def _steps(worker: Worker, attention: TimedAttention, context: int, steps: int) -> dict[str, float]:
    step_s, select_s, attend_s = [], [], []
    for index in range(steps + 2):
        attention.clear()
        started = time.perf_counter()
        worker.execute(StepPlan(index, decodes=(0,)))
        if index >= 2:
            step_s.append(time.perf_counter() - started)
            select_s.append(attention.select_s)
            attend_s.append(attention.attend_s)
    return {"step_s": median(step_s), "select_s": median(select_s), "attend_s": median(attend_s)}


@click.command(help=__doc__)
@click.option("--json", "json_file", type=click.Path(path_type=Path))
@click.option("--steps", default=12, show_default=True, help="Decode steps at each context; at most 14.")
def main(json_file: Path | None, steps: int) -> None:
    state = idleness()
    warn_if_busy(state)
    with TemporaryDirectory() as name:
        folder = Path(name)
        spec = write_checkpoint(folder, **SHAPE)
        dense = replace(spec, indexer=None, indexed=())
        found = {
            kind: measure(folder, each, steps=steps) for kind, each in (("dense", dense), ("sparse", spec))
        }
    print("context   dense step   sparse step   of it: choice   attention  (ms)")
    for plain, sparse in zip(found["dense"], found["sparse"], strict=True):
        figures = (plain["step_s"], sparse["step_s"], sparse["select_s"], sparse["attend_s"])
        print(f"{plain['context']:7}   " + "   ".join(f"{1e3 * s:10.2f}" for s in figures))
    data = {**provenance(), "idleness": state, "shape": SHAPE, "steps": steps, **found}
    if json_file is not None:
        json_file.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
