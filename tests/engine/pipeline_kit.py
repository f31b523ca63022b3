"""Ranks as threads that follow a script, and what they compute against transformers.

Pools are filled with NaN, pages that are released are filled with NaN again,
and every rank samples on its own, so what comes out is what the worker computes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from splash_cpu.attention import CpuAttention

from splash.exec.inputs import StepInputs
from splash.exec.rank import load
from splash.exec.start import WorkerArgs
from splash.exec.worker import Worker
from splash.hal.inproc import DEFAULT_CAPS, InProcessBackend
from splash.hal.threads import ThreadCommunicator, run_ranks
from splash.layout.rows import Span
from splash.model.attention.selection import Selection
from splash.model.checkpoint import open_checkpoint
from splash.sched.step import (
    StepResult,
)
from splash.spec.model import ModelSpec
from tests.engine.script import Script, at, serve
from tests.tiny import reference_logits


@dataclass
class Outcome:
    """Of every request: the tokens it got, and the logits [n, vocab] that gave them."""

    tokens: dict[int, list[int]]
    logits: dict[int, torch.Tensor]
    results: list[list[StepResult]]
    """[rank][step]"""
    calls: list[list[list[tuple[str, Any]]]]
    """[rank][step]: collectives as the rank entered them, (op, counts)."""


class Recorder:
    """A communicator that notes what is entered."""

    def __init__(self, comm: ThreadCommunicator) -> None:
        self.comm = comm
        self.rank, self.size = comm.rank, comm.size
        self.calls: list[tuple[str, Any]] = []

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.append(("all_reduce", x.numel()))
        return self.comm.all_reduce(x)

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.append(("all_gather", x.numel()))
        return self.comm.all_gather(x)

    def all_gather_v(self, x: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        width = x.shape[1:].numel()
        self.calls.append(("all_gather_v", [c * width for c in counts]))
        return self.comm.all_gather_v(x, counts)

    def all_to_all_v(
        self, send: torch.Tensor, send_counts: Sequence[int], recv_counts: Sequence[int]
    ) -> torch.Tensor:
        self.calls.append(("all_to_all_v", (list(send_counts), list(recv_counts))))
        return self.comm.all_to_all_v(send, send_counts, recv_counts)

    def exchange(self, *args: Any, **kwargs: Any) -> Any:
        return self.comm.exchange(*args, **kwargs)


class RecordingBackend(InProcessBackend):
    """Pools are filled with NaN; the thread's communicator may be wrapped."""

    def pool(self, comm: Any, num_bytes: int) -> Any:
        pool = super().pool(getattr(comm, "comm", comm), num_bytes)
        pool.bytes.fill_(0xFF)
        return pool


Chosen = dict[tuple[int, int, int], set[int]]
"""(layer, request, position of a row) -> positions that it attends over."""


def run(
    folder: Path,
    script: Script,
    *,
    gather_tokens: int = 8,
    gaps: bool = False,
    check: bool = True,
    chosen: Chosen | None = None,
    divided: bool = True,
) -> Outcome:
    """All plans of `script` on threads; the logits are rank 0's, and every rank must sample the same.

    `chosen` is filled with what indexers chose on any rank; ranks that know the same row must agree. `divided`: the
    port's capability to divide what every rank needs.
    """
    args = WorkerArgs(
        folder=str(folder),
        spec=script.spec,
        memory=script.memory,
        dtype=script.dtype,
        max_positions=1024,
        check=check,
        gather_tokens=gather_tokens,
        gaps=gaps,
    )
    caps = replace(DEFAULT_CAPS, divides_replicated=divided)
    backend = RecordingBackend(attention=CpuAttention(), caps=caps)
    seen: dict[int, list[torch.Tensor]] = {}

    def observe(requests: list[int], logits: torch.Tensor) -> None:
        for request, row in zip(requests, logits, strict=True):
            seen.setdefault(request, []).append(row.clone())

    def rank(comm: ThreadCommunicator) -> tuple[list[StepResult], list[list[tuple[str, Any]]]]:
        torch.set_num_threads(1)
        weights, pool = load(comm, backend, args)
        comm.barrier()  # as the executor, which waits until all ranks are ready
        recorder = Recorder(comm)
        spans: list[Span] = []

        def watch(layer: int, inputs: StepInputs, selection: Selection) -> None:
            assert chosen is not None
            note_chosen(chosen, layer, spans, inputs, selection)

        worker = Worker(
            comm=recorder,
            backend=backend,
            args=args,
            weights=weights,
            pool=pool,
            observe=observe if comm.rank == 0 else lambda requests, logits: None,
            watch=None if chosen is None else watch,
        )
        pages = pool.bytes.view(-1, script.memory.pages.page_bytes)
        results, calls = [], []
        for step in script.steps:
            spans[:] = step.spans
            results.append(worker.execute(step.plan))
            calls.append(recorder.calls[:])
            recorder.calls.clear()
            worker.copy(step.plan.copies)
            for where, page in step.poison:
                if where == comm.rank:
                    pages[page].fill_(0xFF)
        return results, calls

    results, calls = zip(*run_ranks(script.ranks, rank), strict=True)
    for other in results[1:]:
        assert [r.tokens for r in other] == [r.tokens for r in results[0]], "ranks sampled different tokens"
    return Outcome(_tokens(script, results[0]), _stacked(seen), list(results), list(calls))


def note_chosen(
    chosen: Chosen, layer: int, spans: Sequence[Span], inputs: StepInputs, selection: Selection
) -> None:
    """Add what one rank knows of a layer's choice in a step of `spans`."""
    selecting = inputs.rows.selecting
    assert selecting is not None
    rows = torch.arange(inputs.rows.num_rows)[selecting.rows].tolist()
    places = [(span.request, span.start + i) for span in spans for i in range(span.count)]
    for row, positions in zip(rows, selection.positions.tolist(), strict=True):
        mine = {p for p in positions if p >= 0}
        if mine:
            known = chosen.setdefault((layer, *places[row]), mine)
            assert known == mine, f"ranks chose differently in layer {layer} for {places[row]}"


def _tokens(script: Script, results: Sequence[StepResult]) -> dict[int, list[int]]:
    tokens: dict[int, list[int]] = {}
    for step, result in zip(script.steps, results, strict=True):
        for request, token in zip(step.sampled, result.tokens, strict=True):
            tokens.setdefault(request, []).append(token)
    return tokens


def _stacked(seen: dict[int, list[torch.Tensor]]) -> dict[int, torch.Tensor]:
    return {request: torch.stack(rows) for request, rows in seen.items()}


def assert_as_reference(folder: Path, prompts: Mapping[int, Sequence[int]], outcome: Outcome) -> None:
    """Logits within 1e-4 of transformers', teacher-forced on our tokens, and its tokens where they are clear."""
    for request, prompt in prompts.items():
        tokens, logits = outcome.tokens[request], outcome.logits[request]
        assert len(tokens) == len(logits)
        wanted = reference_logits(folder, [*prompt, *tokens])[len(prompt) - 1 : -1]
        error = float((logits - wanted).abs().max())
        assert error <= 1e-4, f"request {request}: logits differ by {error:.1e}"
        best = wanted.topk(2).values
        for token, row, gap in zip(tokens, wanted, (best[:, 0] - best[:, 1]).tolist(), strict=True):
            assert token == int(row.argmax()) or gap < 2e-4


def spec_of(folder: Path) -> ModelSpec:
    with open_checkpoint(folder) as checkpoint:
        return checkpoint.spec


def worst_error(folder: Path, spec: ModelSpec, prompt: tuple[int, ...]) -> float:
    """Of the first token's logits after `prompt`, against transformers."""
    script = Script(spec, 1)
    script.admit(0, prompt, at("tp"))
    serve(script, {0: prompt}, -(-len(prompt) // 16), chunk=16)
    logits = run(folder, script).logits[0][0]
    return float((logits - reference_logits(folder, prompt)[-1]).abs().max())
