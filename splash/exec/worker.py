"""A rank: it applies plans, runs its part of the forward pass, samples and copies.

All ranks are given the same plans, sample the same tokens and enter the same collectives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain
from time import monotonic
from typing import NoReturn

import torch

from splash.exec.checked import CheckedCommunicator, assert_replicated
from splash.exec.copies import byte_copy
from splash.exec.frame import RankShape
from splash.exec.inputs import InputBuilder, StepInputs
from splash.exec.mirror import Mirror, Sequence
from splash.exec.pages import page_fields, page_packings
from splash.exec.sample import Observer, Sampler, Want
from splash.exec.states import state_views
from splash.exec.warmup import warm_up_plans
from splash.exec.weights import Shards, shard_views, slot_tensors, tensor_bytes
from splash.hal.packed import PackedAttention
from splash.hal.protocol import Attention, Backend, Communicator, Pool, RankContext
from splash.kv.sections import PageFormat
from splash.kv.slots import MemoryPlan
from splash.layout.exchange import widths
from splash.layout.holders import Topology
from splash.model.assemble import assemble
from splash.model.attention.index import take
from splash.model.attention.selection import Selection
from splash.model.checkpoint import open_checkpoint
from splash.model.loader import DTYPES, load_rank, load_shard
from splash.model.rope import RopeTable
from splash.model.weights import RankWeights
from splash.sched.step import PageCopy, ShardCopy, StepPlan, StepResult
from splash.spec.model import ITEMSIZE, ModelSpec

Watch = Callable[[int, StepInputs, Selection], None]
"""Is given a layer's number, what the step computes, and the tokens that the layer chose."""


@dataclass(frozen=True, slots=True)
class WorkerArgs:
    """What every rank is started with; picklable."""

    folder: str
    spec: ModelSpec
    memory: MemoryPlan
    dtype: str
    max_positions: int
    gather_tokens: int = 2048
    """Workspace bound of a gathered history, tokens."""
    gaps: bool = False
    check: bool = False
    """Assert every collective against the plan, and that replicated rows are (debug)."""


@dataclass(frozen=True, slots=True)
class LayerLoaded:
    """A rank's message after each layer that it has loaded: as many of them, on every rank, as there are layers."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A rank's message once it has loaded and is warm."""

    rank: int
    shard_bytes: int
    weight_bytes: int
    """Weights that stay in their place."""
    pool_bytes: int
    load_s: float
    warm_up_s: float


class Worker:
    """One rank. `execute` one plan after the other, and `copy` after each."""

    def __init__(
        self,
        *,
        comm: Communicator,
        backend: Backend,
        args: WorkerArgs,
        weights: RankWeights,
        pool: Pool,
        observe: Observer | None = None,
        watch: Watch | None = None,
    ) -> None:
        """`observe` is given logits; `watch`, in debug mode, each layer that chose tokens, and what it chose."""
        spec, memory = args.spec, args.memory
        topo = Topology(comm.size, spec.kv_groups(comm.size))
        dtype = DTYPES[args.dtype]
        attention = _attention(backend, memory.pages)
        self._spec = spec
        self._watch = watch
        self._copier = backend.copier(comm, pool)
        self._checked = CheckedCommunicator(comm) if args.check else None
        comm = self._checked or comm
        self._memory = memory
        self._pages = pool.bytes[: memory.geometry.pool_bytes].view(-1, memory.pages.page_bytes)
        self.mirror = Mirror(
            rank=comm.rank,
            topo=topo,
            block_size=memory.pages.block_size,
            zero=self._zero,
            copy=self._copy_page,
            state=memory.state,
        )
        travel = widths(
            spec,
            comm.size,
            ITEMSIZE[args.dtype],
            _history_width(spec, comm.size, memory.pages),
            divided=backend.caps.divides_replicated,
        )
        self._decoder = assemble(
            spec=spec,
            weights=weights,
            shards=[
                Shards(views, self.mirror.resident)
                for views in shard_views(pool.bytes, memory, spec, comm.size, dtype)
            ],
            fields=page_fields(pool.bytes, memory.pages),
            packings=page_packings(memory.pages),
            comm=comm,
            attention=attention,
            topo=topo,
            states=None if memory.state is None else state_views(pool.bytes, memory.state),
            down=travel.down,
        )
        self._inputs = InputBuilder(
            mirror=self.mirror,
            shape=RankShape(
                rank=comm.rank,
                topo=topo,
                block_size=memory.pages.block_size,
                widths=travel,
                is_mla=spec.is_mla,
                pool=1 if spec.indexer is None else spec.indexer.pool,
                top_k=None if spec.indexer is None else spec.indexer.top_keys,
            ),
            rope=RopeTable(spec.rope, args.max_positions, dtype=dtype, device=backend.device),
            index_rope=_index_rope(spec, args.max_positions, dtype=dtype, device=backend.device),
            attention=attention,
            gather_tokens=args.gather_tokens,
        )
        self._sampler = Sampler(comm=comm, vocab_size=spec.vocab_size, gaps=args.gaps, observe=observe)

    def execute(self, plan: StepPlan) -> StepResult:
        """Apply the plan's changes, compute its rows, sample. Acknowledges the copies that have completed."""
        self.mirror.apply(plan)
        if not plan.num_rows:
            return StepResult(plan.index, acks=tuple(self._copier.poll()))
        inputs = self._inputs.build(plan)
        started_s = monotonic()
        hidden = self._forward(inputs)
        logits = self._decoder.logits(take(hidden, inputs.sample_rows)) if inputs.sampled else None
        ended_s = monotonic()
        tokens, gaps = self._sample(logits, inputs.sampled)
        return StepResult(
            plan.index, tuple(tokens), tuple(self._copier.poll()), tuple(gaps), started_s, ended_s
        )

    def _forward(self, inputs: StepInputs) -> torch.Tensor:
        """Hidden states [N, hidden]. In debug mode every collective is asserted."""
        if self._checked is None:
            return self._decoder.forward(inputs.tokens, inputs.rows)
        by_kind = [self._inputs.collectives(inputs, indexed=indexed) for indexed in (False, True)]
        embedding = by_kind[0][-1]  # closes like a layer: all rows, all ranks
        closings = by_kind[0][-2:]
        layers = [
            closings if self._spec.is_kda(layer) else by_kind[self._spec.has_indexer(layer)]
            for layer in range(self._spec.num_layers)
        ]
        self._checked.expect([embedding, *chain.from_iterable(layers)])
        chosen: list[torch.Tensor] = []

        def watch(layer: int, selection: Selection) -> None:
            chosen.append(selection.agreed.sort(1).values)
            if self._watch is not None:
                self._watch(layer, inputs, selection)

        hidden = self._decoder.forward(inputs.tokens, inputs.rows, watch)
        self._checked.done()
        assert_replicated(hidden, self._checked, "rows")
        if chosen:
            assert_replicated(torch.cat(chosen), self._checked, "chosen tokens")
        return hidden

    def copy(self, copies: tuple[PageCopy | ShardCopy, ...]) -> None:
        """Start the plan's copies, once its result is on the way."""
        if copies:
            self._copier.submit([byte_copy(copy, self._memory) for copy in copies])

    def close(self) -> None:
        self._copier.close()

    def _sample(
        self, logits: torch.Tensor | None, sequences: list[Sequence]
    ) -> tuple[list[int], list[float]]:
        """Every rank learns every token, so the next row needs no message."""
        if logits is None:
            return [], []
        tokens, gaps = self._sampler(logits, [_want(sequence) for sequence in sequences])
        for sequence, token in zip(sequences, tokens, strict=True):
            sequence.append(token)
        return tokens, gaps

    def _copy_page(self, source: int, destination: int) -> None:
        self._pages[destination].copy_(self._pages[source])

    def _zero(self, pages: list[int]) -> None:
        for page in pages:
            self._pages[page].zero_()


def _index_rope(spec: ModelSpec, max_positions: int, *, dtype: torch.dtype, device: str) -> RopeTable | None:
    """The model's rotations in the indexer's pairing (MODELS §2.3)."""
    if spec.indexer is None:
        return None
    rope = replace(spec.rope, interleaved=spec.indexer.interleaved)
    return RopeTable(rope, max_positions, dtype=dtype, device=device)


def _attention(backend: Backend, pages: PageFormat) -> Attention:
    """The port's, over what pages hold."""
    packings = {section.field.name: section.field.packing for section in pages.sections}
    latent = packings.get("latent")
    if latent is None or backend.caps.packed_kv:
        return backend.attention()
    return PackedAttention(backend.attention(), latent, packings.get("index"))


def _history_width(spec: ModelSpec, ranks: int, pages: PageFormat) -> int:
    """Elements, as they are stored, of one token's KV in one layer and group."""
    stored = {section.field.name: section.field.width for section in pages.sections}
    return sum(stored[field.name] for field in spec.kv_fields(ranks))


def _want(s: Sequence) -> Want:
    return Want(s.request, s.params, s.seed, s.num_tokens, s.forced_token)


def load(
    comm: Communicator,
    backend: Backend,
    args: WorkerArgs,
    loaded: Callable[[], None] = lambda: None,
) -> tuple[RankWeights, Pool]:
    """This rank's weights, and its pool with its own head shard in its slot. `loaded` is called after each layer."""
    pool = backend.pool(comm, args.memory.geometry.pool_bytes)
    dtype = DTYPES[args.dtype]
    with open_checkpoint(args.folder) as checkpoint:
        weights = load_rank(
            checkpoint,
            rank=comm.rank,
            ranks=comm.size,
            dtype=dtype,
            device=backend.device,
            loaded=loaded,
        )
        slot = slot_tensors(pool.bytes, args.memory, comm.rank, dtype)
        load_shard(checkpoint, ranks=comm.size, shard=comm.rank, out=slot)
    return weights, pool


@torch.inference_mode()
def main(context: RankContext, args: WorkerArgs) -> None:
    """The entry of a rank: load, warm up, then serve plans until the job is closed."""
    started = monotonic()
    worker, pool, weight_bytes = _loaded_worker(context, args)
    loaded = monotonic()
    for plan in warm_up_plans(args, context.size):
        worker.execute(plan)
    context.send(
        Ready(
            rank=context.rank,
            shard_bytes=args.memory.shards.num_bytes,
            weight_bytes=weight_bytes,
            pool_bytes=args.memory.geometry.pool_bytes,
            load_s=loaded - started,
            warm_up_s=monotonic() - loaded,
        )
    )
    try:
        serve(context, worker)
    finally:
        worker.close()
        pool.close()


def serve(context: RankContext, worker: Worker) -> NoReturn:
    """Plans in, results out, as `values`, until JobClosed. Copies begin when the result is on its way."""
    while True:
        plan = StepPlan.of(context.receive())
        context.send(worker.execute(plan).values)
        worker.copy(plan.copies)


def _loaded_worker(context: RankContext, args: WorkerArgs) -> tuple[Worker, Pool, int]:
    """The weights as they were loaded live only here: the worker keeps those in their final order."""
    weights, pool = load(context.comm, context.backend, args, lambda: context.send(LayerLoaded()))
    worker = Worker(comm=context.comm, backend=context.backend, args=args, weights=weights, pool=pool)
    return worker, pool, tensor_bytes(weights)
