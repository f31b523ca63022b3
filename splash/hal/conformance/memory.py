"""Pools and copies: whose bytes are whose, and that copies move these bytes and no others."""

from __future__ import annotations

import random
import time

import torch

from splash.core.errors import NotSupported
from splash.hal.conformance.suite import Check, require
from splash.hal.protocol import ByteCopy, Copied, Copier, RankContext

POOL_BYTES = 1 << 20
WAIT_S = 30.0


def pools_start_zero_and_apart(context: RankContext) -> None:
    """Zeros at first, aligned, one for each rank, and two pools do not share memory."""
    first = context.backend.pool(context.comm, POOL_BYTES)
    second = context.backend.pool(context.comm, POOL_BYTES)
    require(first.bytes.shape == (POOL_BYTES,), "the pool has", tuple(first.bytes.shape), "bytes")
    require(first.bytes.dtype == torch.uint8, "a pool is uint8, not", first.bytes.dtype)
    require(first.bytes.data_ptr() % 256 == 0, "the pool is not aligned")
    require(not first.bytes.any().item(), "a new pool is not zero")
    first.bytes.fill_(context.rank + 1)
    context.comm.barrier()
    require(not second.bytes.any().item(), "two pools share memory")
    require(bool((first.bytes == context.rank + 1).all()), "another rank wrote into this pool")
    context.comm.barrier()
    first.close()
    second.close()


def peers_are_mapped(context: RankContext) -> None:
    """Where caps say so: what a rank writes, its peers read."""
    pool = context.backend.pool(context.comm, POOL_BYTES)
    if not context.backend.caps.mapped_peers:
        try:
            pool.peer((context.rank + 1) % context.size)
        except NotSupported:
            raise
        raise AssertionError("caps.mapped_peers is false, and yet peer() does not raise NotSupported")
    pool.bytes.copy_(_pattern(context.rank).to(pool.bytes.device))
    context.comm.barrier()
    for rank in range(context.size):
        seen = pool.peer(rank)
        require(seen.shape == pool.bytes.shape, "a peer's pool has another size")
        require(torch.equal(seen.cpu(), _pattern(rank)), "rank", rank, "'s pool reads as something else")
    context.comm.barrier()
    pool.close()


def copies_move_exactly_their_bytes(context: RankContext) -> None:
    """Between all pairs and within a rank, runs of all sizes and none; acknowledged once, at the destination."""
    for round_ in range(3):
        pool = context.backend.pool(context.comm, POOL_BYTES)
        pool.bytes.copy_(_pattern(context.rank).to(pool.bytes.device))
        context.comm.barrier()
        copier = context.backend.copier(context.comm, pool)
        copies = _copies(context.size, seed=round_)
        copier.submit(copies)
        mine = sorted(copy.id for copy in copies if copy.dst_rank == context.rank)
        copied = _wait(copier, len(mine))
        require(sorted(copied.ids) == mine, "acknowledged", copied.ids, "instead of", mine)
        require(0 < copied.seconds < WAIT_S or not mine, "copies took", copied.seconds, "seconds")
        context.comm.barrier()
        require(copier.poll() == Copied(), "a copy is acknowledged, or its time told, twice")
        expected = _pattern(context.rank)
        for copy in copies:
            if copy.dst_rank == context.rank:
                for src, dst, count in copy.runs:
                    expected[dst : dst + count] = _pattern(copy.src_rank)[src : src + count]
        require(torch.equal(pool.bytes.cpu(), expected), "the pool is not what the copies make of it")
        context.comm.barrier()
        copier.close()
        pool.close()


def _copies(size: int, *, seed: int) -> list[ByteCopy]:
    """Sources in the first half of the pools, destinations in the second, no two of which overlap."""
    chance = random.Random(seed)
    free = [POOL_BYTES // 2] * size
    copies = []
    for number in range(6 * size):
        dst = chance.randrange(size)
        runs = []
        for _ in range(chance.randrange(5)):
            count = chance.choice((0, 1, 63, 64, 576 * 4, 9000))
            if free[dst] + count <= POOL_BYTES:
                runs.append((chance.randrange(POOL_BYTES // 2 - count), free[dst], count))
                free[dst] += count + chance.randrange(3)
        copies.append(ByteCopy(100 + number, chance.randrange(size), dst, tuple(runs)))
    return copies


def _wait(copier: Copier, count: int) -> Copied:
    done, seconds = copier.poll()
    deadline = time.monotonic() + WAIT_S
    while len(done) < count and time.monotonic() < deadline:
        time.sleep(0.001)
        more, longer = copier.poll()
        done, seconds = done + more, seconds + longer
    return Copied(done, seconds)


def _pattern(rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(77 + rank)
    return torch.randint(0, 256, (POOL_BYTES,), dtype=torch.uint8, generator=generator)


CHECKS: tuple[Check, ...] = (
    pools_start_zero_and_apart,
    peers_are_mapped,
    copies_move_exactly_their_bytes,
)
