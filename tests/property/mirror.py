"""An executor without tensors: it knows for every page which token of which request each of its places holds.

It does what the plan says, and asserts what a real executor could only show as wrong tokens: no page is read
before it is written, every reader has every token, no page serves two uses, nothing is lost by a flip.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from splash.kv.slots import MemoryPlan
from splash.layout.holders import Topology, holders
from splash.layout.layouts import Assignment
from splash.layout.residency import full_ranks
from splash.sched.step import PageCopy, ShardCopy, StepPlan, StepResult

STALE = "what the page held before"


@dataclass
class Mirrored:
    """A request as an executor sees it."""

    tokens: list[int]
    computed: int
    present: Assignment
    forced: tuple[int, ...]
    num_prompt: int
    next: Assignment | None = None
    tables: dict[tuple[int, int, int], int] = field(default_factory=dict)
    shadows: dict[tuple[int, int, int], int] = field(default_factory=dict)
    """(rank, group, block) -> page."""
    state: list[list[int]] = field(default_factory=list)
    """Per rank the pages of its recurrent state; each holds what the request has computed."""


class MirrorExecutor:
    """`delay` steps pass before a copy's bytes arrive and are acknowledged (0: right after its step)."""

    def __init__(self, memory: MemoryPlan, topo: Topology, *, delay: int = 0, seed: int = 0) -> None:
        self.topo = topo
        self.size = memory.pages.block_size
        self.geometry = memory.geometry
        self.token_bytes = memory.pages.token_bytes
        self.requests: dict[int, Mirrored] = {}
        self.pages: list[dict[int, list[object]]] = [{} for _ in range(topo.ranks)]
        self.shards = [{r: self.geometry.shard_bytes} for r in range(topo.ranks)]
        self.resident = [frozenset((r,)) for r in range(topo.ranks)]
        self.received = [[0] * topo.ranks for _ in range(topo.ranks)]
        self._zeroed: set[tuple[int, int]] = set()
        """(rank, page) that the plan has given to somebody."""
        self.delay = delay
        self.rng = random.Random(seed)
        self.boundary_s: Callable[[StepPlan], float] = lambda plan: 0.0
        """Seconds between the steps before a plan and its own."""
        self.step_s = 0.0
        """Seconds of a step."""
        self.copy_rate: float | None = None
        """Bytes per second that arrive on a rank; None: nobody times copies."""
        self.copied_s: list[float] = []
        """Of each result."""
        self._time_s = 0.0
        self._waiting: list[tuple[int, PageCopy | ShardCopy]] = []
        self._acks: list[int] = []
        self._results: deque[StepResult] = deque()

    def submit(self, plan: StepPlan) -> None:
        arrived = self._run_copies(plan.step)
        self.copied_s.append(arrived / self.copy_rate if self.copy_rate else 0.0)
        acks, self._acks = tuple(self._acks), []
        self._apply(plan)
        tokens = self._forward(plan)
        self._waiting += [(plan.step + self.rng.randint(0, self.delay), copy) for copy in plan.copies]
        self._time_s += self.boundary_s(plan)
        started_s = self._time_s
        self._time_s += self.step_s
        result = StepResult(
            plan.step,
            tuple(tokens),
            acks,
            started_s=started_s,
            ended_s=self._time_s,
            copied_s=self.copied_s[-1],
        )
        self._results.append(result)

    def collect(self) -> StepResult:
        return self._results.popleft()

    def close(self) -> None:
        """Nothing to end."""

    def _apply(self, plan: StepPlan) -> None:
        self._zeroed.clear()
        for rank, shards in plan.residents:
            for j in shards - self.resident[rank]:
                assert self.shards[rank].get(j, 0) == self.geometry.shard_bytes, (
                    f"rank {rank} lacks shard {j}"
                )
            for j in self.resident[rank] - shards:
                del self.shards[rank][j]
            self.resident[rank] = shards
        for request in plan.gone:
            self.requests.pop(request, None)
        for a in plan.admits:
            assert a.request not in self.requests
            state = [list(pages) for pages in a.state]
            self.requests[a.request] = Mirrored(list(a.tokens), 0, a.at, a.forced, a.num_prompt, state=state)
            for rank, pages in enumerate(state):
                for page in pages:
                    self._zero(rank, page)
                    self.pages[rank][page] = [(a.request, 0)]
        for request, place, rank, page in plan.state_moves:
            self._zero(rank, page)
            pages = self.requests[request].state[rank]
            self.pages[rank][page] = list(self.pages[rank][pages[place]])
            pages[place] = page
        for request, block, group, rank, page, filled in plan.grants:
            self._zero(rank, page)
            if filled:
                self.pages[rank][page] = [STALE] * self.size
            self.requests[request].tables[rank, group, block] = page
            self.requests[request].shadows.pop((rank, group, block), None)
        for request, block, group, rank, page in plan.moves:
            self.requests[request].tables[rank, group, block] = page
            self.requests[request].shadows.pop((rank, group, block), None)
        for request, block, group, rank, page in plan.shadows:
            self._zero(rank, page)
            self.requests[request].shadows[rank, group, block] = page
        for requests, at in plan.flips:
            for request in requests:
                self.requests[request].present, self.requests[request].next = at, None
                self._expect_clean(self.requests[request], at)
        for request, at in plan.stages:
            self.requests[request].next = at

    def _expect_clean(self, request: Mirrored, at: Assignment) -> None:
        """What it reads from now on was zeroed, or has been filled whole."""
        for (rank, group, block), page in request.tables.items():
            if rank in holders(at, block, group, self.topo):
                assert STALE not in self.pages[rank][page], (
                    f"rank {rank} page {page} of block {block} is stale"
                )

    def _zero(self, rank: int, page: int) -> None:
        assert page > self.geometry.null_page or page // self.geometry.slot_pages not in self.resident[rank]
        assert 0 <= page < self.geometry.num_pages
        assert (rank, page) not in self._zeroed, f"rank {rank} page {page} is given away twice in a plan"
        self._zeroed.add((rank, page))
        self.pages[rank][page] = [None] * self.size

    def _forward(self, plan: StepPlan) -> list[int]:
        tokens = []
        for request in plan.decodes:
            r = self.requests[request]
            assert r.computed == len(r.tokens) - 1, "a decode row is the last known token"
            self._rows(request, r, r.computed, 1)
            tokens.append(self._sample(request, r))
        for chunk in plan.chunks:
            r = self.requests[chunk.request]
            assert chunk.start == r.computed
            self._rows(chunk.request, r, chunk.start, chunk.count)
            if r.computed == len(r.tokens):
                tokens.append(self._sample(chunk.request, r))
        assert plan.decodes == tuple(sorted(set(plan.decodes), key=plan.decodes.index))
        return tokens

    def _sample(self, request: int, r: Mirrored) -> int:
        token = (request * 7919 + len(r.tokens) * 104729) % 50021
        index = len(r.tokens) - r.num_prompt
        r.tokens.append(r.forced[index] if r.forced else token)
        return token

    def _rows(self, request: int, r: Mirrored, start: int, count: int) -> None:
        places = [r.present] + ([r.next] if r.next is not None else [])
        for rank in full_ranks(r.present, self.topo.ranks):
            assert len(self.resident[rank]) == self.topo.ranks, (
                f"rank {rank} computes all heads without all shards"
            )
        for position in range(start, start + count):
            block, place = divmod(position, self.size)
            for group in range(self.topo.groups):
                for rank in {x for at in places for x in holders(at, block, group, self.topo)}:
                    key = rank, group, block
                    content = (request, position, group)
                    self.pages[rank][r.tables[key]][place] = content
                    if key in r.shadows:
                        self.pages[rank][r.shadows[key]][place] = content
        for position in range(start + count):
            block, place = divmod(position, self.size)
            for group in range(self.topo.groups):
                for rank in holders(r.present, block, group, self.topo):
                    held = self.pages[rank][r.tables[rank, group, block]][place]
                    assert held == (request, position, group), (
                        f"request {request} {r.present} reads token {position} on rank {rank}: {held}"
                    )
        for rank, pages in enumerate(r.state):
            for page in pages:
                assert self.pages[rank][page] == [(request, start)], (
                    f"request {request} goes on from another state on rank {rank}"
                )
                self.pages[rank][page] = [(request, start + count)]
        r.computed = start + count

    def _run_copies(self, index: int) -> int:
        """Those that are due; returns the bytes that came to the busiest rank."""
        into = [0] * self.topo.ranks
        due = [c for at, c in self._waiting if at < index]
        self._waiting = [(at, c) for at, c in self._waiting if at >= index]
        for copy in due:
            if isinstance(copy, ShardCopy):
                held = self.shards[copy.dst_rank].setdefault(copy.shard, 0)
                assert held == copy.first or copy.first == 0
                self.shards[copy.dst_rank][copy.shard] = copy.stop
                source, num_bytes = copy.shard, copy.stop - copy.first
            else:
                src = self.pages[copy.src_rank][copy.src_page]
                dst = self.pages[copy.dst_rank].setdefault(copy.dst_page, [None] * self.size)
                dst[copy.first : copy.stop] = src[copy.first : copy.stop]
                source, num_bytes = copy.src_rank, (copy.stop - copy.first) * self.token_bytes
            self.received[source][copy.dst_rank] += num_bytes
            into[copy.dst_rank] += num_bytes
            self._acks.append(copy.id)
        return max(into)
