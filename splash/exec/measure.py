"""Times the operations that a step is made of, on all ranks at once, through the port's own protocol.

What is run is what the model runs: its linear products and experts, the port's attention, communicator and copier.
Times are medians over repetitions; ranks start each operation together, so that they share the machine as in a step.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from typing import Any

import torch

from splash.hal.conformance.cases import Batch, Heads, Rows, make_batch
from splash.hal.protocol import ByteCopy, RankContext
from splash.hw.measure import COPY, STREAM, Timing
from splash.model.layers.linear import linear, packed
from splash.model.layers.moe import MoE, Router
from splash.model.layers.norm import RMSNorm
from splash.spec.model import MoESpec

REPEATS = 9
COLD_BYTES = 64 << 20
"""Weights that are used in turn, so that no cache holds them, as in a model of many layers."""
STREAM_BYTES = 128 << 20

ROWS = (1, 4, 16, 64, 256)
SHAPES = ((576, 1024), (1536, 512), (1024, 1024), (2304, 1024), (1024, 2304))
"""Columns and inner dimension of products."""
HIDDEN, EXPERTS, TOP_K = 1024, 16, 4
MLA = (Heads(2, 1, 576, 512, mla=True), Heads(16, 1, 576, 512, mla=True))
GQA = (Heads(4, 2, 128, 128), Heads(16, 2, 128, 128))
INDEX = (Heads(4, 1, 64, 64, mla=True), Heads(32, 1, 64, 64, mla=True))
"""Few and many heads: what is bound by memory, and what by arithmetic."""
DECODES = tuple(
    (rows, length) for rows in (1, 8, 32) for length in (64, 512, 2048, 6144) if rows * length <= 65536
)
CHUNKS = tuple((start, rows) for start in (0, 512, 2048) for rows in (32, 128, 512))
SELECTED = 512
MESSAGES = tuple(1 << power for power in range(10, 23, 2))
IN_A_ROW = 20
PAGE_BYTES, NUM_PAGES = 64 << 10, 512

Call = Callable[..., object]
"""Called without arguments; those of the lambdas here are what they hold on to."""


def measure_ranks(context: RankContext, args: Any) -> None:
    """A rank's entry: sends its timings, then waits for the end."""
    with torch.inference_mode():
        context.send(tuple(timings(context)))
    context.receive()


def mean_timings(by_rank: Sequence[Sequence[Timing]]) -> tuple[Timing, ...]:
    """One timing for each operation and counts: the mean over the ranks, which ran it at the same time."""
    return tuple(
        Timing(same[0].operation, same[0].counts, statistics.fmean(timing.seconds for timing in same))
        for same in zip(*by_rank, strict=True)
    )


def timings(context: RankContext) -> Iterator[Timing]:
    """All of them, in the same order on every rank."""
    torch.manual_seed(context.rank)
    dtypes = [name for name in ("float32", "bfloat16") if name in context.backend.caps.dtypes]
    yield from _stream(context)
    for name in dtypes:
        yield from _products(context, name)
        yield from _experts(context, name)
    yield from _elementwise(context)
    yield from _decodes(context)
    yield from _chunks(context)
    yield from _selections(context)
    if context.size > 1:
        yield from _collectives(context)
    yield from _copies(context)


def _timed(context: RankContext, call: Call, *, repeats: int = REPEATS) -> float:
    """Median seconds; one call before does not count, since it compiles and maps what the others use."""
    call()
    context.backend.synchronize()
    context.comm.barrier()
    found = []
    for _ in range(repeats):
        started = time.perf_counter()
        call()
        context.backend.synchronize()
        found.append(time.perf_counter() - started)
    return statistics.median(found)


def _weights(context: RankContext, dtype: torch.dtype, *shape: int) -> Iterator[torch.Tensor]:
    """Different ones in turn, in the form that `linear` prefers."""
    count = max(2, COLD_BYTES // (shape[0] * shape[1] * dtype.itemsize))
    several = torch.randn(count, *shape, device=context.backend.device).to(dtype) / shape[1] ** 0.5
    return cycle([packed(weight) for weight in several])


def _stream(context: RankContext) -> Iterator[Timing]:
    weight = torch.randn(STREAM_BYTES // 4 // HIDDEN, HIDDEN, device=context.backend.device)
    row = torch.randn(1, HIDDEN, device=context.backend.device)
    yield Timing(STREAM, {"num_bytes": STREAM_BYTES}, _timed(context, lambda: linear(row, weight)))


def _products(context: RankContext, name: str) -> Iterator[Timing]:
    dtype = getattr(torch, name)
    for n, k in SHAPES:
        weights = _weights(context, dtype, n, k)
        for m in ROWS:
            x = torch.randn(m, k, device=context.backend.device).to(dtype)
            seconds = _timed(context, lambda x=x, weights=weights: linear(x, next(weights)))
            yield Timing(f"gemm {name}", {"m": m, "n": n, "k": k}, seconds)


def _experts(context: RankContext, name: str) -> Iterator[Timing]:
    """As ranks share them: this one's experts are chosen by some of the rows."""
    dtype, here = getattr(torch, name), EXPERTS // context.size
    spec = MoESpec(EXPERTS, TOP_K, 256, 0, "sigmoid", norm_topk=True, scaling=1.0)
    router = Router(spec, torch.randn(EXPERTS, HIDDEN, device=context.backend.device), None)
    for ffn in (256, 1024):
        layers = cycle([_moe(context, router, dtype, here, ffn) for _ in range(2)])
        for tokens in ROWS:
            h = torch.randn(tokens, HIDDEN, device=context.backend.device).to(dtype)
            seconds = _timed(context, lambda h=h, layers=layers: next(layers)(h))
            counts = {
                "tokens": tokens,
                "rows": tokens * TOP_K / context.size,
                "experts": EXPERTS,
                "experts_hit": here * (1 - (1 - TOP_K / EXPERTS) ** tokens),
                "hidden": HIDDEN,
                "ffn": ffn,
            }
            yield Timing(f"experts {name}", counts, seconds)


def _moe(context: RankContext, router: Router, dtype: torch.dtype, here: int, ffn: int) -> MoE:
    gate_up = torch.randn(here, 2 * ffn, HIDDEN, device=context.backend.device).to(dtype) / HIDDEN**0.5
    down = torch.randn(here, HIDDEN, ffn, device=context.backend.device).to(dtype) / ffn**0.5
    first, pairs = context.rank * here, (gate_up, down)
    return MoE(
        router, *([packed(matrix) for matrix in several] for several in pairs), first=first, shared=None
    )


def _elementwise(context: RankContext) -> Iterator[Timing]:
    norm = RMSNorm(torch.ones(HIDDEN, device=context.backend.device), 1e-6)
    for rows in ROWS:
        x = torch.randn(rows, HIDDEN, device=context.backend.device)
        seconds = _timed(context, lambda x=x: norm(x), repeats=4 * REPEATS)
        yield Timing("elementwise", {"num_bytes": 2 * x.numel() * x.itemsize}, seconds)


def _decodes(context: RankContext) -> Iterator[Timing]:
    for name, heads in _each(mla=MLA, gqa=GQA):
        for rows, length in DECODES:
            batch = _batch(context, heads, [Rows(length - 1)] * rows)
            counts = {"rows": rows, "kv_tokens": rows * length, **_sizes(heads)}
            yield Timing(f"{name} decode", counts, _timed(context, _attend(context, batch)))


def _chunks(context: RankContext) -> Iterator[Timing]:
    for name, heads in _each(mla=MLA, gqa=GQA):
        for start, rows in CHUNKS:
            batch = _batch(context, heads, [Rows(start, rows)])
            pairs = rows * (start + (rows + 1) / 2)
            counts = {"pairs": pairs, "kv_tokens": start + rows, **_sizes(heads)}
            yield Timing(f"{name} prefill", counts, _timed(context, _attend(context, batch)))


def _each(**kinds: tuple[Heads, ...]) -> Iterator[tuple[str, Heads]]:
    return ((name, heads) for name, several in kinds.items() for heads in several)


def _batch(context: RankContext, heads: Heads, rows: Sequence[Rows]) -> Batch:
    backend = context.backend
    return make_batch(heads, rows, block_size=backend.caps.block_size, device=backend.device)


def _attend(context: RankContext, batch: Batch) -> Call:
    attention, size = context.backend.attention(), context.backend.caps.block_size
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


def _selections(context: RankContext) -> Iterator[Timing]:
    """The indexer's choice of tokens, and attention over as many."""
    lengths = [(rows, length) for rows, length in DECODES if length > SELECTED]
    for index, heads in zip(INDEX, MLA, strict=True):
        for rows, length in lengths:
            yield from _selection(context, index, heads, rows, length)


def _selection(context: RankContext, index: Heads, heads: Heads, rows: int, length: int) -> Iterator[Timing]:
    attention, size = context.backend.attention(), context.backend.caps.block_size
    batch = _batch(context, index, [Rows(length - 1)] * rows)
    weights, keys = torch.randn(batch.q.shape[:2], device=context.backend.device), batch.kv.k[:, :, 0]
    prepared = attention.prepare_selection(batch.seqs, size, SELECTED)
    seconds = _timed(context, lambda: attention.select(batch.q, weights, keys, prepared))
    yield Timing("indexer", {"rows": rows, "kv_tokens": rows * length, **_sizes(index)}, seconds)
    cached = _batch(context, heads, [Rows(length - 1)] * rows)
    tokens = _places(cached, size)
    seconds = _timed(context, lambda: attention.attend_selected(cached.q, cached.kv, tokens, cached.scale))
    yield Timing("selected", {"rows": rows, "kv_tokens": rows * SELECTED, **_sizes(heads)}, seconds)


def _places(batch: Batch, size: int) -> torch.Tensor:
    """Where SELECTED tokens of each row lie, anywhere in its context."""
    within = torch.arange(size, device=batch.q.device)
    tokens = [(seq.pages[:, None] * size + within).flatten()[: seq.num_keys] for seq in batch.seqs]
    return torch.stack([own[torch.randperm(len(own), device=own.device)[:SELECTED]] for own in tokens])


def _collectives(context: RankContext) -> Iterator[Timing]:
    """Many in a row, so that waiting for the slower rank counts once."""
    comm, size = context.comm, context.size
    share = 1 - 1 / size
    for num_bytes in MESSAGES:
        x = torch.zeros(num_bytes // 4, device=context.backend.device)
        part, parts = x[: len(x) // size].contiguous(), [len(x) // size] * size
        calls: dict[str, tuple[float, Call]] = {
            "all_reduce": (2 * share, lambda x=x: comm.all_reduce(x)),
            "all_gather": (share, lambda part=part: comm.all_gather(part)),
            "reduce_scatter": (share, lambda x=x: comm.reduce_scatter(x.view(size, -1))),
            "all_to_all": (share, lambda x=x, parts=parts: comm.all_to_all_v(x[: sum(parts)], parts, parts)),
            "broadcast": (1.0, lambda x=x: comm.broadcast(x, 0)),
        }
        for op, (received, call) in calls.items():
            seconds = _timed(context, lambda call=call: [call() for _ in range(IN_A_ROW)]) / IN_A_ROW
            yield Timing(op, {"num_bytes": received * num_bytes}, seconds)


def _copies(context: RankContext) -> Iterator[Timing]:
    """Pages from the next rank's pool, as a transition copies them."""
    half = PAGE_BYTES * NUM_PAGES
    pool = context.backend.pool(context.comm, 2 * half)
    pool.bytes.fill_(1)
    context.comm.barrier()
    copier = context.backend.copier(context.comm, pool)
    order = torch.randperm(NUM_PAGES).tolist()
    runs = tuple((PAGE_BYTES * src, half + PAGE_BYTES * dst, PAGE_BYTES) for dst, src in enumerate(order))

    def copied() -> None:
        copier.submit([ByteCopy(rank, (rank + 1) % context.size, rank, runs) for rank in range(context.size)])
        while not copier.poll():
            pass

    yield Timing(COPY, {"num_bytes": half}, _timed(context, copied))
    context.comm.barrier()
    copier.close()
    pool.close()
