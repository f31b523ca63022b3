"""A rank from its start to its end: it loads its weights, warms up, and serves plans until the job is closed."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import NoReturn

import torch

from splash.exec.start import LayerLoaded, Ready, WorkerArgs
from splash.exec.warmup import warm_up_plans
from splash.exec.weights import slot_tensors, tensor_bytes
from splash.exec.worker import Worker
from splash.hal.protocol import Backend, Communicator, Pool, RankContext
from splash.model.checkpoint import open_checkpoint
from splash.model.loader import DTYPES, load_rank, load_shard
from splash.model.weights import RankWeights
from splash.sched.step import StepPlan


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
    load_s = monotonic() - started
    for plan in warm_up_plans(args, context.size):
        worker.execute(plan)
    context.send(
        Ready(
            rank=context.rank,
            shard_bytes=args.memory.shards.num_bytes,
            weight_bytes=weight_bytes,
            pool_bytes=args.memory.geometry.pool_bytes,
            load_s=load_s,
        )
    )
    try:
        serve(context, worker)
    finally:
        worker.close()
        pool.close()


def serve(context: RankContext, worker: Worker) -> NoReturn:
    """Plans in, results out, as plain values, until JobClosed. Copies begin when the result is on its way."""
    while True:
        plan = StepPlan.of(context.receive())
        context.send(tuple(worker.execute(plan)))
        worker.copy(plan.copies)


def _loaded_worker(context: RankContext, args: WorkerArgs) -> tuple[Worker, Pool, int]:
    """The weights as they were loaded live only here: the worker keeps those in their final order."""
    weights, pool = load(context.comm, context.backend, args, lambda: context.send(LayerLoaded()))
    worker = Worker(comm=context.comm, backend=context.backend, args=args, weights=weights, pool=pool)
    return worker, pool, tensor_bytes(weights)
