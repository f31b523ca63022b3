"""Dummy steps that write to the null page, so that the first real one finds compiled kernels and warm memory."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from splash.core.params import SamplingParams
from splash.exec.start import WorkerArgs
from splash.layout.holders import Topology, holders
from splash.layout.layouts import DCP, DOP, TP, Assignment
from splash.layout.rows import Method
from splash.sched.step import Admit, Chunk, PageGrant, StepPlan

REQUEST = -1
ROWS = (64, 56, 48, 40, 32, 28, 24, 20, 16, 12, 8, 4, 3, 2, 1)
"""Counts for which kernels are made (those of `linear.bucket`); larger ones are made when they are met."""


def warm_up_plans(args: WorkerArgs, ranks: int) -> Iterator[StepPlan]:
    """One step for each count of rows, then one for each exchange; the same on all ranks."""
    index = count(-1, -1)
    for rows in ROWS:
        if rows <= args.max_positions:
            yield _step(args, ranks, Assignment(TP), rows, next(index))
    if ranks > 1:
        for layout in (DOP, DCP):
            yield _step(args, ranks, Assignment(layout), 2, next(index))
    yield StepPlan(next(index), gone=(REQUEST,))


def _step(args: WorkerArgs, ranks: int, at: Assignment, rows: int, index: int) -> StepPlan:
    """A prompt of `rows` tokens, various so that all experts get some, in pages that are all the null page."""
    topo, page = Topology(ranks, args.spec.kv_groups(ranks)), args.memory.geometry.null_page
    blocks = range(-(-rows // args.memory.pages.block_size))
    state = ((page,) * args.memory.state_pages,) * ranks if args.memory.state_pages else ()
    tokens = tuple(i * 7919 % args.spec.vocab_size for i in range(rows))
    return StepPlan(
        index,
        gone=(REQUEST,),
        admits=(Admit(REQUEST, tokens, rows, SamplingParams(), 0, at, state=state),),
        grants=tuple(
            PageGrant(REQUEST, block, group, rank, page)
            for block in blocks
            for group in range(topo.groups)
            for rank in holders(at, block, group, topo)
        ),
        chunks=(Chunk(REQUEST, 0, rows, Method.EXCHANGE),),
    )
