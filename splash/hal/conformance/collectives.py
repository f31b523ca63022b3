"""Collectives: the right numbers, in rank order, the same bits on all ranks, also for nothing at all."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from splash.hal.conformance.suite import Check, require
from splash.hal.protocol import Communicator, RankContext

SIZES = (0, 1, 7, 1000, 70_001)
SUM_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64)
MOVE_DTYPES = (*SUM_DTYPES, torch.uint8)


def all_reduce_sums(context: RankContext) -> None:
    """In place, every dtype and size; the bits agree on all ranks."""
    for dtype in SUM_DTYPES:
        for size in SIZES:
            parts = _parts(context, (size,), dtype)
            x = parts[context.rank].clone()
            result = context.comm.all_reduce(x)
            require(result.data_ptr() == x.data_ptr(), "all_reduce is not in place")
            _require_sum(x, parts, f"all_reduce of {size} {dtype}")
            _require_replicated(context.comm, x)


def all_reduce_keeps_shapes(context: RankContext) -> None:
    """Any shape; values that cancel only if they are summed in one order on all ranks."""
    x = torch.full((3, 1, 5), 10.0 ** (8 * context.rank), device=context.backend.device)
    x += torch.arange(15.0, device=x.device).view(3, 1, 5) / 7
    require(context.comm.all_reduce(x).shape == (3, 1, 5), "all_reduce changes the shape")
    _require_replicated(context.comm, x)


def all_gather_is_in_rank_order(context: RankContext) -> None:
    for dtype in MOVE_DTYPES:
        for shape in ((0,), (1,), (5, 3), (2, 0, 4), ()):
            parts = _parts(context, shape, dtype)
            result = context.comm.all_gather(parts[context.rank])
            _require_equal(result, torch.stack(parts), f"all_gather of {shape} {dtype}")


def all_gather_v_takes_uneven_and_no_rows(context: RankContext) -> None:
    size = context.size
    for counts in ([3] * size, [r % 3 for r in range(size)], [0] * size, [*[0] * (size - 1), 4]):
        for width in ((), (5,), (2, 3), (0,)):
            for dtype in MOVE_DTYPES:
                parts = [_data(context, (counts[r], *width), dtype, r) for r in range(size)]
                result = context.comm.all_gather_v(parts[context.rank], counts)
                _require_equal(result, torch.cat(parts), f"all_gather_v of {counts} {width} {dtype}")


def all_to_all_v_takes_uneven_and_no_elements(context: RankContext) -> None:
    """Every pair its own count; ranks that send or receive nothing; nothing at all."""
    size, rank = context.size, context.rank
    matrices = {
        "uneven": [[(3 * s + 5 * d + 1) % 7 for d in range(size)] for s in range(size)],
        "one receiver": [[4 if d == size - 1 else 0 for d in range(size)] for _ in range(size)],
        "one sender": [[9 if s == 0 else 0 for _ in range(size)] for s in range(size)],
        "nothing": [[0] * size for _ in range(size)],
        "large": [[50_000 + s - d for d in range(size)] for s in range(size)],
    }
    for name, counts in matrices.items():
        for dtype in MOVE_DTYPES:
            sent = [_data(context, (sum(counts[s]),), dtype, s) for s in range(size)]
            result = context.comm.all_to_all_v(
                sent[rank], counts[rank], [counts[s][rank] for s in range(size)]
            )
            expected = torch.cat([sent[s].split(counts[s])[rank] for s in range(size)])
            _require_equal(result, expected, f"all_to_all_v, {name}, {dtype}")


def broadcast_from_every_root(context: RankContext) -> None:
    for root in range(context.size):
        for shape in ((0,), (6,), (2, 3)):
            for dtype in MOVE_DTYPES:
                parts = _parts(context, shape, dtype)
                x = parts[context.rank].clone()
                result = context.comm.broadcast(x, root)
                require(result.data_ptr() == x.data_ptr(), "broadcast is not in place")
                _require_equal(x, parts[root], f"broadcast of {shape} {dtype} from {root}")


def reduce_scatter_gives_each_rank_its_part(context: RankContext) -> None:
    for dtype in SUM_DTYPES:
        for shape in ((0,), (1,), (7, 3)):
            parts = _parts(context, (context.size, *shape), dtype)
            result = context.comm.reduce_scatter(parts[context.rank].clone())
            mine = [part[context.rank] for part in parts]
            _require_sum(result, mine, f"reduce_scatter of {shape} {dtype}")


def results_are_not_overwritten(context: RankContext) -> None:
    """Collectives in quick succession, ranks out of step; what each returned stays as it was."""
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []
    for i in range(30):
        parts = _parts(context, (1 + 13 * (i % 4),), torch.float32, salt=i)
        if i % context.size == context.rank:
            time.sleep(0.002)
        x = parts[context.rank].clone()
        kept.append((context.comm.all_gather(x), torch.stack(parts)))
        x.fill_(-1)
        counts = [1] * context.size
        ones = torch.arange(context.size, device=x.device) + 10 * context.rank
        expected = torch.tensor([10 * r + context.rank for r in range(context.size)], device=x.device)
        kept.append((context.comm.all_to_all_v(ones, counts, counts), expected))
        if i % 7 == 0:
            context.comm.barrier()
    for result, expected in kept:
        _require_equal(result, expected, "a result changed after it was returned")


def barrier_waits_for_all(context: RankContext) -> None:
    """No rank leaves before the last has come."""
    for late in range(context.size):
        context.comm.barrier()
        if context.rank == late:
            time.sleep(0.05)
        came = time.monotonic()
        context.comm.barrier()
        left = time.monotonic()
        times = context.comm.all_gather(torch.tensor([came, left], dtype=torch.float64))
        require(bool((times[:, 1] >= times[late, 0]).all()), "a rank left the barrier early:", times.tolist())


def _data(
    context: RankContext, shape: Sequence[int], dtype: torch.dtype, rank: int, *, salt: int = 0
) -> torch.Tensor:
    """What `rank` gives: known to all ranks, different on each."""
    generator = torch.Generator().manual_seed(1000 * salt + rank)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype).to(context.backend.device)
    low, high = (0, 256) if dtype == torch.uint8 else (-(1 << 40), 1 << 40)
    return torch.randint(low, high, shape, generator=generator, dtype=dtype).to(context.backend.device)


def _parts(
    context: RankContext, shape: Sequence[int], dtype: torch.dtype, *, salt: int = 0
) -> list[torch.Tensor]:
    return [_data(context, shape, dtype, rank, salt=salt) for rank in range(context.size)]


def _require_equal(result: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    require(
        result.shape == expected.shape, what, "has shape", tuple(result.shape), "not", tuple(expected.shape)
    )
    require(result.dtype == expected.dtype, what, "has dtype", result.dtype)
    require(torch.equal(result, expected), what, "differs")


def _require_sum(result: torch.Tensor, parts: list[torch.Tensor], what: str) -> None:
    wide = torch.float64 if result.dtype.is_floating_point else torch.int64
    expected = torch.stack(parts).to(wide).sum(0)
    if result.dtype.is_floating_point:
        size = torch.stack(parts).to(wide).abs().sum(0)
        error = (result.to(wide) - expected).abs() / size.clamp(min=1e-30)
        bound = 2 * len(parts) * torch.finfo(result.dtype).eps
        require(bool((error <= bound).all()), what, "is off by", error.max().item() if error.numel() else 0)
    else:
        require(torch.equal(result, expected), what, "differs")


def _require_replicated(comm: Communicator, x: torch.Tensor) -> None:
    bits = comm.all_gather(x.view(-1).view(torch.uint8))
    require(all(torch.equal(bits[0], other) for other in bits), "ranks have different bits of a sum")


CHECKS: tuple[Check, ...] = (
    all_reduce_sums,
    all_reduce_keeps_shapes,
    all_gather_is_in_rank_order,
    all_gather_v_takes_uneven_and_no_rows,
    all_to_all_v_takes_uneven_and_no_elements,
    broadcast_from_every_root,
    reduce_scatter_gives_each_rank_its_part,
    results_are_not_overwritten,
    barrier_waits_for_all,
)
