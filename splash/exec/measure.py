"""Times the operations that a step is made of, on all ranks at once, through the port's own protocol.

What is run is what the model runs: its linear products and experts, the port's attention, communicator and copier.
An operation is timed as a step finds it: all ranks begin it together, and before each repetition they compute products
as large as a layer's, so that no cache holds its code, its inputs or the pages it reads. (With caches warm attention
over a short context took half as long as in a step, and a norm a third.) Times are medians over repetitions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import cycle
from math import prod
from statistics import fmean, median
from typing import Any

import numpy as np
import torch

from splash.hal.conformance.cases import Batch, Heads, Rows, make_batch
from splash.hal.protocol import ByteCopy, RankContext
from splash.hw.measure import COPY, STREAM, Timing
from splash.model.layers.linear import heads_matmul, linear, packed
from splash.model.layers.moe import MoE, Router
from splash.model.layers.norm import RMSNorm
from splash.spec.model import MoESpec

REPEATS, REPEATS_OF_CHUNKS = 9, 3
LAYER_BYTES = 32 << 20
"""Weights that a rank reads between two repetitions."""
LOST_AT_MOST = 0.03
"""Of a repetition's time, for it to count."""
COLD_BYTES = 64 << 20
"""Weights that are used in turn, so that no cache holds them, as in a model of many layers."""
STREAM_BYTES = 128 << 20

ROWS = (1, 4, 16, 64, 256)
SHAPES = ((576, 1024), (1536, 512), (1024, 1024), (2304, 1024), (1024, 2304))
"""Columns and inner dimension of products."""
HEADS = ((8, 512, 128), (8, 128, 512), (16, 512, 64))
"""Heads, columns and inner dimension of products by head: of what absorbs queries, and of what makes values of latents,
whose weights lie transposed."""
HIDDEN, EXPERTS, TOP_K = 1024, 16, 4
MLA = tuple(Heads(heads, 1, 576, 512, mla=True) for heads in (2, 8, 16))
GQA = tuple(Heads(heads, 2, 128, 128) for heads in (4, 16))
INDEX = tuple(Heads(heads, 1, 64, 64, mla=True) for heads in (4, 32))
"""Few and many heads: what is bound by memory, and what by arithmetic."""
DECODES = tuple(
    (rows, length) for rows in (1, 8, 32) for length in (60, 500, 2500, 6000) if rows * length <= 65536
)
CHUNKS = tuple((start, rows) for start in (0, 512, 2048) for rows in (32, 128, 512))
SELECTED = 512
MESSAGES = tuple(1 << power for power in range(10, 23, 2))
PAGE_BYTES, NUM_PAGES = 64 << 10, 512

Call = Callable[..., object]
"""Called without arguments; those of the lambdas here are what they hold on to."""


def measure_ranks(context: RankContext, args: Any) -> None:
    """A rank's entry: sends its timings, then waits for the end."""
    with torch.inference_mode():
        context.send(tuple(timings(context)))
    context.receive()


def slowest_timings(by_rank: Sequence[Sequence[Timing]]) -> tuple[Timing, ...]:
    """Of each operation that all ranks ran alike the slowest rank's, for which the others wait at the next collective;
    where they had different work, all."""
    found: list[Timing] = []
    for same in zip(*by_rank, strict=True):
        alike = all(timing.counts == same[0].counts for timing in same)
        found += [max(same, key=lambda timing: timing.seconds)] if alike else same
    return tuple(found)


def timings(context: RankContext) -> Iterator[Timing]:
    """All of them, in the same order on every rank."""
    clock = Clock(context)
    dtypes = [name for name in ("float32", "bfloat16") if name in context.backend.caps.dtypes]
    yield from _stream(clock)
    for name in dtypes:
        yield from _products(clock, name)
        yield from _by_head(clock, name)
        yield from _experts(clock, name)
    yield from _elementwise(clock)
    yield from _decodes(clock)
    yield from _chunks(clock)
    yield from _selections(clock)
    if context.size > 1:
        yield from _collectives(clock)
    yield from _copies(clock)


class Clock:
    """Times calls on this rank while all others make the same ones."""

    def __init__(self, context: RankContext) -> None:
        self.comm = context.comm
        self.backend = context.backend
        self.device = context.backend.device
        self._row = torch.randn(1, HIDDEN, device=self.device)
        layer = torch.randn(LAYER_BYTES // 4 // HIDDEN, HIDDEN, device=self.device)
        self._layer = [packed(weight) for weight in layer.split(HIDDEN)]

    def seconds(self, call: Call, *, repeats: int = REPEATS, after_layer: bool = True) -> float:
        """The median; one call before does not count, since it compiles and maps what the others use. Products do not
        come `after_layer`: they follow upon others, and bring weights of their own that are in no cache. Repetitions
        in which a rank lost its core to another process are repeated, within reason."""
        call()
        counted: list[float] = []
        disturbed: list[tuple[float, float]] = []
        while len(counted) < repeats and len(disturbed) < 3 * repeats:
            elapsed, lost = self._once(call, after_layer=after_layer)
            if lost > LOST_AT_MOST:
                disturbed.append((lost, elapsed))
            else:
                counted.append(elapsed)
        return median(counted or [elapsed for _, elapsed in sorted(disturbed)[:repeats]])

    def _once(self, call: Call, *, after_layer: bool) -> tuple[float, float]:
        """Seconds of it on this rank, and the share of its own in which the rank that lost most had no core."""
        for weight in self._layer if after_layer else ():
            linear(self._row, weight)
        self.backend.synchronize()
        self.comm.barrier()
        started, worked = time.perf_counter(), time.process_time()
        call()
        self.backend.synchronize()
        elapsed, worked = time.perf_counter() - started, time.process_time() - worked
        lost = torch.tensor([1 - worked / elapsed], device=self.device)
        return elapsed, float(self.comm.all_gather(lost).max())


def _stream(clock: Clock) -> Iterator[Timing]:
    weight = torch.randn(STREAM_BYTES // 4 // HIDDEN, HIDDEN, device=clock.device)
    row = torch.randn(1, HIDDEN, device=clock.device)
    yield Timing(
        STREAM, {"num_bytes": STREAM_BYTES}, clock.seconds(lambda: linear(row, weight), after_layer=False)
    )


def _products(clock: Clock, name: str) -> Iterator[Timing]:
    """With weights in either form: as `linear` prefers them, and as they lie in a slot."""
    for n, k in SHAPES:
        several = _weights(clock, name, n, k)
        for weights in ([packed(weight) for weight in several], several):
            for m in ROWS:
                x = torch.randn(m, k, device=clock.device).to(several[0].dtype)
                call = partial(_product, x, cycle(weights))
                yield Timing(f"gemm {name}", {"m": m, "n": n, "k": k}, clock.seconds(call, after_layer=False))


def _product(x: torch.Tensor, weights: Iterator[torch.Tensor]) -> None:
    linear(x, next(weights))


def _by_head(clock: Clock, name: str) -> Iterator[Timing]:
    for heads, n, k in HEADS:
        weights = cycle(_weights(clock, name, heads, n, k) if n < k else _weights(clock, name, heads, k, n))
        for m in ROWS:
            x = torch.randn(m, heads, k, device=clock.device).to(getattr(torch, name))
            call = partial(_product_by_head, x, weights, x.new_empty(m, heads, n))
            counts = {"heads": heads, "m": m, "n": n, "k": k}
            yield Timing(f"by head {name}", counts, clock.seconds(call, after_layer=False))


def _product_by_head(x: torch.Tensor, weights: Iterator[torch.Tensor], out: torch.Tensor) -> None:
    weight = next(weights)
    heads_matmul(x, weight if weight.shape[1] == x.shape[2] else weight.transpose(1, 2), out=out)


def _weights(clock: Clock, name: str, *shape: int) -> list[torch.Tensor]:
    """So many that no cache holds those that come again."""
    dtype = getattr(torch, name)
    count = max(2, COLD_BYTES // (prod(shape) * dtype.itemsize))
    return [(torch.randn(shape, device=clock.device) / shape[-1] ** 0.5).to(dtype) for _ in range(count)]


def _experts(clock: Clock, name: str) -> Iterator[Timing]:
    """As ranks share them: each has some, and the rows of every repetition choose others."""
    dtype, num_here = getattr(torch, name), EXPERTS // clock.comm.size
    here = range(clock.comm.rank * num_here, (clock.comm.rank + 1) * num_here)
    spec = MoESpec(EXPERTS, TOP_K, 256, 0, "sigmoid", norm_topk=True, scaling=1.0)
    router = Router(spec, torch.randn(EXPERTS, HIDDEN, device=clock.device), None)
    for ffn in (256, 1024):
        layer = _moe(clock, router, dtype, here, ffn)
        for tokens in ROWS:
            inputs = torch.randn(1 + REPEATS, tokens, HIDDEN, device=clock.device).to(dtype).unbind(0)
            rows = cycle(inputs)
            seconds = clock.seconds(lambda layer=layer, rows=rows: layer(next(rows)))
            counts = {"tokens": tokens, "experts": EXPERTS, "hidden": HIDDEN, "ffn": ffn}
            yield Timing(f"experts {name}", {**counts, **_chosen(router, inputs[1:], here)}, seconds)


def _moe(clock: Clock, router: Router, dtype: torch.dtype, here: range, ffn: int) -> MoE:
    gate_up = torch.randn(len(here), 2 * ffn, HIDDEN, device=clock.device).to(dtype) / HIDDEN**0.5
    down = torch.randn(len(here), HIDDEN, ffn, device=clock.device).to(dtype) / ffn**0.5
    pairs = ([packed(matrix) for matrix in several] for several in (gate_up, down))
    return MoE(router, *pairs, first=here.start, shared=None)


def _chosen(router: Router, inputs: Sequence[torch.Tensor], here: range) -> dict[str, float]:
    """What the experts `here` have to do for one of `inputs`, on average."""
    chosen = [[expert for expert in router(h)[0].flatten().tolist() if expert in here] for h in inputs]
    return {"rows": fmean(map(len, chosen)), "experts_hit": fmean(len(set(experts)) for experts in chosen)}


def _elementwise(clock: Clock) -> Iterator[Timing]:
    norm = RMSNorm(torch.ones(HIDDEN, device=clock.device), 1e-6)
    for rows in ROWS:
        x = torch.randn(rows, HIDDEN, device=clock.device)
        seconds = clock.seconds(lambda x=x: norm(x))
        yield Timing("elementwise", {"num_bytes": 2 * x.numel() * x.itemsize}, seconds)


def _decodes(clock: Clock) -> Iterator[Timing]:
    for name, heads in _each(mla=MLA, gqa=GQA):
        for rows, length in DECODES:
            batch = _batch(clock, heads, [Rows(length - 1)] * rows)
            counts = {"rows": rows, "kv_tokens": rows * length, **_sizes(heads)}
            yield Timing(f"{name} decode", counts, clock.seconds(_attend(clock, batch)))


def _chunks(clock: Clock) -> Iterator[Timing]:
    for name, heads in _each(mla=MLA, gqa=GQA):
        for start, rows in CHUNKS:
            batch = _batch(clock, heads, [Rows(start, rows)])
            pairs = rows * (start + (rows + 1) / 2)
            counts = {"pairs": pairs, "kv_tokens": start + rows, **_sizes(heads)}
            yield Timing(
                f"{name} prefill", counts, clock.seconds(_attend(clock, batch), repeats=REPEATS_OF_CHUNKS)
            )


def _each(**kinds: tuple[Heads, ...]) -> Iterator[tuple[str, Heads]]:
    return ((name, heads) for name, several in kinds.items() for heads in several)


def _batch(clock: Clock, heads: Heads, rows: Sequence[Rows]) -> Batch:
    backend = clock.backend
    return make_batch(heads, rows, block_size=backend.caps.block_size, device=backend.device)


def _attend(clock: Clock, batch: Batch) -> Call:
    attention, size = clock.backend.attention(), clock.backend.caps.block_size
    prepared = attention.prepare(batch.seqs, size)
    return lambda: attention.attend(batch.q, batch.kv, prepared, batch.scale)


def _sizes(heads: Heads) -> dict[str, float]:
    width = heads.d_k if heads.mla else heads.d_k + heads.d_v
    token_bytes = 4 * heads.kv_heads * width
    return {
        "heads": heads.heads,
        "kv_heads": heads.kv_heads,
        "head_dim": heads.d_v,
        "token_bytes": token_bytes,
    }


def _selections(clock: Clock) -> Iterator[Timing]:
    """The indexer's choice of tokens, and attention over as many."""
    lengths = [(rows, length) for rows, length in DECODES if length > SELECTED]
    for index, heads in zip(INDEX, (MLA[0], MLA[-1]), strict=True):
        for rows, length in lengths:
            yield from _selection(clock, index, heads, rows, length)


def _selection(clock: Clock, index: Heads, heads: Heads, rows: int, length: int) -> Iterator[Timing]:
    attention, size = clock.backend.attention(), clock.backend.caps.block_size
    batch = _batch(clock, index, [Rows(length - 1)] * rows)
    weights, keys = torch.randn(batch.q.shape[:2], device=clock.device), batch.kv.k[:, :, 0]
    prepared = attention.prepare_selection(batch.seqs, size, SELECTED)
    seconds = clock.seconds(lambda: attention.select(batch.q, weights, keys, prepared))
    yield Timing("indexer", {"rows": rows, "kv_tokens": rows * length, **_sizes(index)}, seconds)
    cached = _batch(clock, heads, [Rows(length - 1)] * rows)
    tokens = _places(cached, size)
    seconds = clock.seconds(lambda: attention.attend_selected(cached.q, cached.kv, tokens, cached.scale))
    yield Timing("selected", {"rows": rows, "kv_tokens": rows * SELECTED, **_sizes(heads)}, seconds)


def _places(batch: Batch, size: int) -> torch.Tensor:
    """Where SELECTED tokens of each row lie, anywhere in its context."""
    tokens = [(seq.pages[:, None] * size + np.arange(size)).flatten()[: seq.num_keys] for seq in batch.seqs]
    chosen = [torch.from_numpy(own)[torch.randperm(len(own))[:SELECTED]] for own in tokens]
    return torch.stack(chosen).to(batch.q.device)


def _collectives(clock: Clock) -> Iterator[Timing]:
    comm, size = clock.comm, clock.comm.size
    share = 1 - 1 / size
    for num_bytes in MESSAGES:
        x = torch.zeros(num_bytes // 4, device=clock.device)
        part, parts = x[: len(x) // size].contiguous(), [len(x) // size] * size
        calls: dict[str, tuple[float, Call]] = {
            "all_reduce": (2 * share, lambda x=x: comm.all_reduce(x)),
            "all_gather": (share, lambda part=part: comm.all_gather(part)),
            "reduce_scatter": (share, lambda x=x: comm.reduce_scatter(x.view(size, -1))),
            "all_to_all": (share, lambda x=x, parts=parts: comm.all_to_all_v(x[: sum(parts)], parts, parts)),
            "broadcast": (1.0, lambda x=x: comm.broadcast(x, 0)),
        }
        for op, (received, call) in calls.items():
            yield Timing(op, {"num_bytes": received * num_bytes}, clock.seconds(call))


def _copies(clock: Clock) -> Iterator[Timing]:
    """Pages from the next rank's pool, as a transition copies them."""
    half = PAGE_BYTES * NUM_PAGES
    pool = clock.backend.pool(clock.comm, 2 * half)
    pool.bytes.fill_(1)
    clock.comm.barrier()
    copier = clock.backend.copier(clock.comm, pool)
    order = torch.randperm(NUM_PAGES).tolist()
    runs = tuple((PAGE_BYTES * src, half + PAGE_BYTES * dst, PAGE_BYTES) for dst, src in enumerate(order))

    def copied() -> None:
        copier.submit(
            [ByteCopy(rank, (rank + 1) % clock.comm.size, rank, runs) for rank in range(clock.comm.size)]
        )
        while not copier.poll().ids:
            pass

    yield Timing(COPY, {"num_bytes": half}, clock.seconds(copied, after_layer=False))
    clock.comm.barrier()
    copier.close()
    pool.close()
