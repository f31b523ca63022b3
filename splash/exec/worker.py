"""A rank: it applies plans, runs its part of the forward pass, samples and copies.

All ranks are given the same plans, sample the same tokens and enter the same collectives.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import replace
from itertools import chain
from time import monotonic

import torch

from splash.exec.checked import CheckedCommunicator, assert_replicated
from splash.exec.copies import byte_copy
from splash.exec.frame import RankShape
from splash.exec.inputs import InputBuilder, StepInputs
from splash.exec.mirror import Mirror, Sequence
from splash.exec.pages import page_fields, page_packings
from splash.exec.sample import Observer, Sampler, Want
from splash.exec.start import WorkerArgs
from splash.exec.states import state_views
from splash.exec.weights import Shards, shard_views
from splash.hal.packed import PackedAttention
from splash.hal.protocol import Attention, Backend, Communicator, Pool
from splash.kv.sections import PageFormat
from splash.layout.exchange import widths
from splash.layout.holders import Topology
from splash.model.assemble import assemble
from splash.model.attention.index import take
from splash.model.attention.selection import Selection
from splash.model.decoder import Decoder
from splash.model.loader import DTYPES
from splash.model.rope import RopeTable
from splash.model.weights import RankWeights
from splash.sched.step import PageCopy, ShardCopy, StepPlan, StepResult
from splash.spec.model import ITEMSIZE, ModelSpec

Watch = Callable[[int, StepInputs, Selection], None]
"""Is given a layer's number, what the step computes, and the tokens that the layer chose."""


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
        memory = args.memory
        shape = _shape(args, comm, backend)
        attention = _attention(backend, memory.pages)
        self._spec = args.spec
        self._memory = memory
        self._watch = watch
        self._pages = pool.bytes[: memory.geometry.pool_bytes].view(-1, memory.pages.page_bytes)
        self._copier = backend.copier(comm, pool)
        self._checked = CheckedCommunicator(comm) if args.check else None
        comm = self._checked or comm
        self.mirror = Mirror(
            rank=comm.rank,
            topo=shape.topo,
            block_size=shape.block_size,
            zero=self._zero,
            copy=self._copy_page,
            state=memory.state,
        )
        resident = self.mirror.resident
        self._decoder = _decoder(args, shape, comm, weights, pool, resident=resident, attention=attention)
        self._inputs = _inputs(args, shape, self.mirror, attention=attention, device=backend.device)
        self._sampler = Sampler(comm=comm, vocab_size=args.spec.vocab_size, gaps=args.gaps, observe=observe)

    def execute(self, plan: StepPlan) -> StepResult:
        """Apply the plan's changes, compute its rows, sample. Acknowledges the copies that have completed."""
        self.mirror.apply(plan)
        if not plan.num_rows:
            acks, copied_s = self._copier.poll()
            return StepResult(plan.step, acks=acks, copied_s=copied_s)
        inputs = self._inputs.build(plan)
        started_s = monotonic()
        hidden = self._forward(inputs)
        logits = self._decoder.logits(take(hidden, inputs.sample_rows)) if inputs.sampled else None
        ended_s = monotonic()
        tokens, gaps = self._sample(logits, inputs.sampled)
        acks, copied_s = self._copier.poll()
        return StepResult(plan.step, tuple(tokens), acks, tuple(gaps), started_s, ended_s, copied_s)

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


def _shape(args: WorkerArgs, comm: Communicator, backend: Backend) -> RankShape:
    """What the model and the ranks decide of every step."""
    spec, memory = args.spec, args.memory
    return RankShape(
        rank=comm.rank,
        topo=Topology(comm.size, spec.kv_groups(comm.size)),
        block_size=memory.pages.block_size,
        widths=widths(
            spec,
            comm.size,
            ITEMSIZE[args.dtype],
            _history_width(spec, comm.size, memory.pages),
            divided=backend.caps.divides_replicated,
        ),
        is_mla=spec.is_mla,
        pool=1 if spec.indexer is None else spec.indexer.pool,
        top_k=None if spec.indexer is None else spec.indexer.top_keys,
    )


def _decoder(
    args: WorkerArgs,
    shape: RankShape,
    comm: Communicator,
    weights: RankWeights,
    pool: Pool,
    *,
    resident: Set[int],
    attention: Attention,
) -> Decoder:
    """The model's layers over the pool: shards in its slots, of which `resident` may be read, KV and states in its
    pages."""
    spec, memory, dtype = args.spec, args.memory, DTYPES[args.dtype]
    by_layer = shard_views(pool.bytes, memory, spec, comm.size, dtype)
    return assemble(
        spec=spec,
        weights=weights,
        shards=[Shards(views, resident) for views in by_layer],
        fields=page_fields(pool.bytes, memory.pages),
        packings=page_packings(memory.pages),
        comm=comm,
        attention=attention,
        topo=shape.topo,
        states=None if memory.state is None else state_views(pool.bytes, memory.state),
        down=shape.widths.down,
    )


def _inputs(
    args: WorkerArgs, shape: RankShape, mirror: Mirror, *, attention: Attention, device: str
) -> InputBuilder:
    """From plans to the decoder's inputs, with rotations for as many positions as requests may have."""
    spec, dtype = args.spec, DTYPES[args.dtype]
    return InputBuilder(
        mirror=mirror,
        shape=shape,
        rope=RopeTable(spec.rope, args.max_positions, dtype=dtype, device=device),
        index_rope=_index_rope(spec, args.max_positions, dtype=dtype, device=device),
        attention=attention,
        gather_tokens=args.gather_tokens,
    )


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
    return PackedAttention(backend.attention(), latent, packings.get("index"), backend.device)


def _history_width(spec: ModelSpec, ranks: int, pages: PageFormat) -> int:
    """Elements, as they are stored, of one token's KV in one layer and group."""
    stored = {section.field.name: section.field.width for section in pages.sections}
    return sum(stored[field.name] for field in spec.kv_fields(ranks))


def _want(s: Sequence) -> Want:
    return Want(s.request, s.params, s.seed, s.num_tokens, s.forced_token)
