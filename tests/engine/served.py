"""The real scheduler over real ranks, driven step by step, invariants checked: threads with their logits seen, or
whatever a deployment launches."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from splash_cpu.attention import CpuAttention

from splash.core.config import EngineConfig, SchedulerConfig
from splash.core.events import Event
from splash.core.params import SamplingParams
from splash.core.request import Request
from splash.engine.deployment import Deployment, open_deployment
from splash.exec.executor import RankExecutor
from splash.exec.rank import load, serve
from splash.exec.start import WorkerArgs
from splash.exec.worker import Worker
from splash.hal.inproc import DEFAULT_CAPS, InProcessBackend
from splash.hal.protocol import RankContext
from splash.sched.results import Output
from splash.sched.scheduler import Scheduler
from splash.sched.step import Executor, ManualClock

BLOCK_SIZE = 4

Logits = dict[int, list[torch.Tensor]]
_SEEN: dict[int, Logits] = {}
"""By run: what rank 0 saw. Ranks are threads of this process, and their entry can be given only plain data."""


def observed_rank(context: RankContext, args: tuple[int, WorkerArgs]) -> None:
    """A rank as `splash.exec.rank.main`, with pools full of NaN and rank 0's logits kept."""
    run, worker_args = args
    torch.set_num_threads(1)
    weights, pool = load(context.comm, context.backend, worker_args)
    memory = worker_args.memory
    own = memory.geometry.slot_offset(context.rank), memory.geometry.shard_bytes
    before, after = pool.bytes[: own[0]], pool.bytes[own[0] + own[1] :]
    for part in (before, after):
        part.copy_(torch.full((part.numel(),), 0xFF, dtype=torch.uint8))  # NaN in every float type
    context.comm.barrier()

    def observe(requests: list[int], logits: torch.Tensor) -> None:
        if context.rank:
            return
        for request, row in zip(requests, logits, strict=True):
            _SEEN[run][request].append(row.clone())

    worker = Worker(
        comm=context.comm,
        backend=context.backend,
        args=worker_args,
        weights=weights,
        pool=pool,
        observe=observe,
    )
    context.send(None)
    serve(context, worker)


class Driven:
    """A deployment's ranks from `with` on, driven by hand."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.events: list[Event] = []
        self.outputs: dict[int, list[int]] = {}
        self.reasons: dict[int, str] = {}
        self.clock = ManualClock()
        self.scheduler: Scheduler = deployment.scheduler(clock=self.clock, emit=self.events.append)
        self.executor: Executor
        self._next_id = 0

    def __enter__(self) -> Driven:
        self.executor = self.launch()
        return self

    def __exit__(self, *exc: object) -> None:
        self.executor.close()

    def launch(self) -> Executor:
        """The ranks, when they are ready."""
        return self.deployment.launch()

    def add(
        self, prompt: tuple[int, ...], max_tokens: int, *, forced: tuple[int, ...] = (), **params: Any
    ) -> int:
        request = Request(
            self._next_id, prompt, SamplingParams(max_tokens=max_tokens, ignore_eos=True, **params)
        )
        self._next_id += 1
        self.scheduler.add(request, forced)
        self.outputs[request.id] = []
        return request.id

    def step(self) -> bool:
        plan = self.scheduler.schedule()
        if plan is None:
            return False
        self.executor.submit(plan)
        self.scheduler.prepare()
        self.clock.time_s += 0.01
        self._take(self.scheduler.update(self.executor.collect()))
        return True

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def abort(self, request: int) -> None:
        output = self.scheduler.abort(request)
        if output is not None:
            self._take([output])

    def switch(self, layout: str) -> None:
        """Ask for a layout and step until every request is there."""
        self.scheduler.set_target(layout, "test")
        self.step()
        for _ in range(500):
            if not self.scheduler.switching:
                break
            self.step()
        assert not self.scheduler.switching
        assert {r.present.layout.name for r in self.scheduler.running.values()} <= {layout}

    def drain(self) -> None:
        while self.step():
            pass
        self.scheduler.drain_events()

    def _take(self, outputs: list[Output]) -> None:
        for request, tokens, reason in outputs:
            self.outputs[request] += tokens
            if reason is not None:
                self.reasons[request] = reason


class Served(Driven):
    """Requests served by ranks in threads."""

    def __init__(
        self,
        folder: Path,
        *,
        ranks: int,
        layout: str,
        kv_pages: int = 200,
        prefer_slots: bool = True,
        dtype: str = "float32",
        kv_dtype: str | None = None,
        **config: Any,
    ) -> None:
        settings: dict[str, Any] = {"token_budget": 24, "max_chunk": 9, "max_model_len": 400, **config}
        deployment = open_deployment(
            folder,
            EngineConfig(
                ranks=ranks,
                layout=layout,
                kv_pages=kv_pages,
                dtype=dtype,
                kv_dtype=kv_dtype,
                scheduler=SchedulerConfig(check_invariants=True, copy_bytes_per_step=400_000, **settings),
            ),
            backend=InProcessBackend(
                attention=CpuAttention(), caps=replace(DEFAULT_CAPS, block_size=BLOCK_SIZE)
            ),
        )
        super().__init__(deployment)
        for pool in self.scheduler.store.pools:
            pool.prefer_slots = prefer_slots
        self.logits: Logits = defaultdict(list)

    def __enter__(self) -> Served:
        _SEEN[id(self)] = self.logits
        super().__enter__()
        return self

    def launch(self) -> Executor:
        d = self.deployment
        assert d.config.dtype is not None
        args = WorkerArgs(
            folder=str(d.checkpoint.folder),
            spec=d.checkpoint.spec,
            memory=d.memory,
            dtype=d.config.dtype,
            max_positions=d.max_model_len + 1,
            gather_tokens=24,
        )
        job = d.backend.launch(d.config.ranks, "tests.engine.served:observed_rank", (id(self), args))
        job.receive(60.0)
        return RankExecutor(job, check=True)

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)
        del _SEEN[id(self)]
