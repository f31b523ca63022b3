"""Plans by hand, with a trivial allocator: nothing of the scheduler is used."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from splash.core.params import SamplingParams
from splash.kv.slots import plan_memory
from splash.layout.diff import difference
from splash.layout.holders import Topology, holders
from splash.layout.layouts import LAYOUTS, Assignment
from splash.layout.residency import full_ranks
from splash.layout.rows import Method, Span, ordered, section_key
from splash.sched.step import (
    Admit,
    Chunk,
    Flip,
    PageCopy,
    PageGrant,
    PageMove,
    Resident,
    Shadow,
    ShardCopy,
    Stage,
    StateMove,
    StepPlan,
)
from splash.spec.model import ModelSpec
from tests.tiny import random_prompt

GREEDY = SamplingParams(max_tokens=1000)

METHODS = (Method.EXCHANGE, Method.GATHER)


def at(layout: str, home: int = 0) -> Assignment:
    return Assignment(LAYOUTS[layout], home)


@dataclass
class Tracked:
    """A request as the maker of plans knows it."""

    id: int
    num_tokens: int
    num_prompt: int
    present: Assignment
    computed: int = 0
    next: Assignment | None = None
    copies: dict[tuple[int, int, int], int] = field(default_factory=dict)
    """(block, group, rank) -> page."""
    state: list[list[int]] = field(default_factory=list)
    """Per rank the pages of its recurrent state."""


@dataclass
class Step:
    plan: StepPlan
    spans: list[Span]
    poison: list[tuple[int, int]]
    """(rank, page) to fill with NaN when the step is over."""
    sampled: list[int]
    """Requests that get a token, in the order of the result."""


class Script:
    """Makes plans. Everything that is said before `step` is in the plan that `step` makes."""

    def __init__(
        self,
        spec: ModelSpec,
        ranks: int,
        *,
        block_size: int = 4,
        kv_pages: int = 400,
        dtype: str = "float32",
        seed: int = 0,
    ) -> None:
        self.spec, self.ranks = spec, ranks
        self.topo = Topology(ranks, spec.kv_groups(ranks))
        self.memory = plan_memory(spec, ranks=ranks, dtype=dtype, block_size=block_size, kv_pages=kv_pages)
        self.dtype, self.block_size = dtype, block_size
        self.draw = random.Random(seed)
        first, stop = self.memory.geometry.null_page + 1, self.memory.geometry.num_pages
        self.free = [self.draw.sample(range(first, stop), stop - first) for _ in range(ranks)]
        self.requests: dict[int, Tracked] = {}
        self.resident = [{r} for r in range(ranks)]
        self.fetching: list[tuple[int, int]] = []
        self.steps: list[Step] = []
        self.num_copies = 0
        self._start()

    def _start(self) -> None:
        self.delta: dict[str, list[Any]] = {
            name: []
            for name in (
                "gone",
                "admits",
                "residents",
                "state_moves",
                "grants",
                "shadows",
                "moves",
                "stages",
                "flips",
                "copies",
            )
        }
        self.retired: list[tuple[int, int]] = []
        self.chunks: list[tuple[int, int, Method]] = []
        self.decoding: list[int] = []

    def admit(
        self,
        request: int,
        tokens: Sequence[int],
        where: Assignment,
        *,
        num_prompt: int | None = None,
        params: SamplingParams = GREEDY,
        seed: int = 0,
        forced: Sequence[int] = (),
    ) -> None:
        num_prompt = len(tokens) if num_prompt is None else num_prompt
        count = self.memory.state_pages
        state = [[free.pop() for _ in range(count)] for free in self.free] if count else []
        self.delta["admits"].append(
            Admit(
                request,
                tuple(tokens),
                num_prompt,
                params,
                seed,
                where,
                tuple(forced),
                tuple(map(tuple, state)),
            )
        )
        self.requests[request] = Tracked(request, len(tokens), num_prompt, where, state=state)

    def end(self, request: int) -> None:
        gone = self.requests.pop(request)
        self.delta["gone"].append(request)
        for (_, _, rank), page in gone.copies.items():
            self.retired.append((rank, page))
        self.retired += [(rank, page) for rank, pages in enumerate(gone.state) for page in pages]

    def move_state(self, request: int, rank: int) -> None:
        """Every page of its state on `rank` moves; the old ones are filled with NaN after the step."""
        pages = self.requests[request].state[rank]
        for place, page in enumerate(pages):
            pages[place] = self.free[rank].pop()
            self.retired.append((rank, page))
            self.delta["state_moves"].append(StateMove(request, place, rank, pages[place]))

    def chunk(self, request: int, count: int, method: Method = Method.EXCHANGE) -> None:
        self.chunks.append((request, count, method))

    def decode(self, *requests: int) -> None:
        self.decoding += requests

    def fetch(self, ranks: Iterable[int] | None = None) -> None:
        """Copy all shards to `ranks` after this step; they are resident from the next one on."""
        size = self.memory.geometry.shard_bytes
        for rank in range(self.ranks) if ranks is None else ranks:
            for shard in range(self.ranks):
                if shard not in self.resident[rank] and (rank, shard) not in self.fetching:
                    half = size // 2 // 64 * 64
                    for first, stop in ((0, half), (half, size)):
                        self.delta["copies"].append(ShardCopy(self._copy_id(), rank, shard, first, stop))
                    self.fetching.append((rank, shard))

    def fetch_for(self, *wanted: Assignment) -> None:
        self.fetch({r for where in wanted for r in full_ranks(where, self.ranks)})

    def drop(self, rank: int) -> None:
        """Only the own shard stays readable on `rank`."""
        self.resident[rank] = {rank}
        self.delta["residents"].append(Resident(rank, frozenset((rank,))))

    def stage(self, request: int, to: Assignment) -> None:
        """Pages and copies for `to`; the copies run after this step, so a flip may come with the next one."""
        r = self.requests[request]
        r.next = to
        num_blocks = -(-r.computed // self.block_size)
        present = [
            [
                tuple(rank for rank in range(self.ranks) if (b, g, rank) in r.copies)
                for g in range(self.topo.groups)
            ]
            for b in range(num_blocks)
        ]
        for copy in difference(present, to, self.topo).copies:
            source = r.copies[copy.block, copy.group, copy.src]
            page = self._grant(r, copy.block, copy.group, copy.dst)
            stop = min(self.block_size, r.computed - copy.block * self.block_size)
            self.delta["copies"].append(PageCopy(self._copy_id(), copy.src, source, copy.dst, page, 0, stop))
        self.delta["stages"].append(Stage(request, to))

    def flip(self, request: int, to: Assignment | None = None) -> None:
        """To what is staged, or another projection of the same placement."""
        r = self.requests[request]
        r.present, r.next = to or r.next or r.present, None
        self.delta["flips"].append(Flip((request,), r.present))
        for key in [k for k in r.copies if k[2] not in holders(r.present, k[0], k[1], self.topo)]:
            self.retired.append((key[2], r.copies.pop(key)))

    def cancel(self, request: int) -> None:
        r = self.requests[request]
        r.next = None
        self.delta["stages"].append(Stage(request, None))
        for key in [k for k in r.copies if k[2] not in holders(r.present, k[0], k[1], self.topo)]:
            self.retired.append((key[2], r.copies.pop(key)))

    def evacuate(self, request: int, block: int, group: int, rank: int) -> None:
        """Shadow one page of a rank by another one, and copy what it holds."""
        r = self.requests[request]
        page, old = self.free[rank].pop(), r.copies[block, group, rank]
        self.delta["shadows"].append(Shadow(request, block, group, rank, page))
        stop = min(self.block_size, r.computed - block * self.block_size)
        if stop > 0:
            self.delta["copies"].append(PageCopy(self._copy_id(), rank, old, rank, page, 0, stop))
        self.moving = (request, block, group, rank, page)

    def move(self) -> None:
        """End the evacuation: the shadow is the page from this step on."""
        request, block, group, rank, page = self.moving
        self.delta["moves"].append(PageMove(*self.moving))
        self.retired.append((rank, self.requests[request].copies[block, group, rank]))
        self.requests[request].copies[block, group, rank] = page

    def step(self) -> None:
        for rank, shard in self.fetching:
            if not any(
                isinstance(c, ShardCopy) and (c.dst_rank, c.shard) == (rank, shard)
                for c in self.delta["copies"]
            ):
                self.resident[rank].add(shard)
        if self.fetching and not any(isinstance(c, ShardCopy) for c in self.delta["copies"]):
            for rank in {rank for rank, _ in self.fetching}:
                self.delta["residents"].append(Resident(rank, frozenset(self.resident[rank])))
            self.fetching = []
        spans = [self._span(i, 1, Method.EXCHANGE, decode=True) for i in self.decoding]
        spans += [self._span(i, count, method, decode=False) for i, count, method in self.chunks]
        for span in spans:
            self._grow(self.requests[span.request], span.end)
        decodes = sorted((s for s in spans if s.decode), key=section_key)
        chunks = sorted((s for s in spans if not s.decode), key=section_key)
        plan = StepPlan(
            step=len(self.steps),
            decodes=tuple(s.request for s in decodes),
            chunks=tuple(Chunk(s.request, s.start, s.count, s.method) for s in chunks),
            **{name: tuple(values) for name, values in self.delta.items()},
        )
        sampled = []
        for span in (*decodes, *chunks):
            r = self.requests[span.request]
            r.computed = span.end
            if r.computed == r.num_tokens:
                sampled.append(r.id)
                r.num_tokens += 1
        self.steps.append(Step(plan, ordered(spans), self.retired, sampled))
        for rank, page in self.retired:
            self.free[rank].insert(0, page)
        self._start()

    def _span(self, request: int, count: int, method: Method, *, decode: bool) -> Span:
        r = self.requests[request]
        if decode:
            assert r.computed == r.num_tokens - 1, f"request {request} is not decoding"
        count = min(count, r.num_tokens - r.computed)
        return Span(request, r.computed, count, r.present, r.next, method, decode)

    def _grow(self, r: Tracked, end: int) -> None:
        for block in range(-(-end // self.block_size)):
            for group in range(self.topo.groups):
                for place in (r.present, r.next):
                    if place is not None:
                        for rank in holders(place, block, group, self.topo):
                            if (block, group, rank) not in r.copies:
                                self._grant(r, block, group, rank)

    def _grant(self, r: Tracked, block: int, group: int, rank: int) -> int:
        page = self.free[rank].pop()
        r.copies[block, group, rank] = page
        self.delta["grants"].append(PageGrant(r.id, block, group, rank, page))
        return page

    def _copy_id(self) -> int:
        self.num_copies += 1
        return self.num_copies - 1


def prompts_of(lengths: tuple[int, ...], *, seed: int = 0) -> dict[int, tuple[int, ...]]:
    return {i: random_prompt(n, seed=100 * seed + i) for i, n in enumerate(lengths)}


def serve(script: Script, prompts: dict[int, tuple[int, ...]], steps: int, *, chunk: int = 7) -> None:
    """`steps` steps: a chunk of each prompt by alternating methods, one decode row of each other request."""
    for step in range(steps):
        for i in prompts:
            r = script.requests[i]
            if r.computed < r.num_tokens - 1 or r.computed < r.num_prompt:
                script.chunk(i, chunk, METHODS[(i + step) % 2])
            else:
                script.decode(i)
        script.step()
