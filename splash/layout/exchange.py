"""What travels in one layer of a step, between which ranks: pure functions of the step's spans (DESIGN §2).

Every rank derives the same `Routes`, rides and gathers from the plan, so all of them enter the same
collectives, with zero rows if need be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from splash.layout.holders import Topology, holders, local_blocks
from splash.layout.layouts import CP, DCP, DOP, DP, TP, Assignment, Projection
from splash.layout.rows import Method, Span
from splash.spec.model import MLASpec, ModelSpec


class Travel(Enum):
    """Where queries go before, or outputs go after, a row attends."""

    STAY = "stay"
    OWNER = "owner"
    """Queries: to the owner of the history; outputs: from it back to the heads, whole."""
    ALL = "all"
    """Queries: to every rank; outputs: partial ones with LSE from every rank back to the heads."""


@dataclass(frozen=True, slots=True, eq=False)
class Dataflow:
    """How a class of rows flows through one layer: a line of REFERENCE §2's table."""

    full: bool
    """Its queries are computed by all shards where they attend, else by head on every rank."""
    queries: Travel
    outputs: Travel
    gathers: bool
    """The history's KV comes to the queries."""

    @property
    def finishes_full(self) -> bool:
        """Finished by all shards where the row attended, else by head on every rank."""
        return self.full and self.outputs is Travel.STAY


OWN = Dataflow(full=False, queries=Travel.STAY, outputs=Travel.STAY, gathers=False)
OWN_GATHERED = Dataflow(full=False, queries=Travel.STAY, outputs=Travel.STAY, gathers=True)
OWNED = Dataflow(full=False, queries=Travel.OWNER, outputs=Travel.OWNER, gathers=False)
STRIPED = Dataflow(full=False, queries=Travel.ALL, outputs=Travel.ALL, gathers=False)
FULL_STRIPED = Dataflow(full=True, queries=Travel.STAY, outputs=Travel.ALL, gathers=False)
FULL_GATHERED = Dataflow(full=True, queries=Travel.STAY, outputs=Travel.STAY, gathers=True)
FULL_LOCAL = Dataflow(full=True, queries=Travel.STAY, outputs=Travel.STAY, gathers=False)

ALL_FLOWS = (OWN, OWN_GATHERED, OWNED, STRIPED, FULL_STRIPED, FULL_GATHERED, FULL_LOCAL)

_FLOWS: dict[str, tuple[Dataflow, Dataflow]] = {
    TP.name: (OWN, OWN),
    DOP.name: (OWNED, OWN_GATHERED),
    DCP.name: (STRIPED, OWN_GATHERED),
    CP.name: (FULL_STRIPED, FULL_GATHERED),
    DP.name: (FULL_LOCAL, FULL_LOCAL),
}
"""Layout to dataflow, by exchange and by gather; tp and dp are always local."""


def dataflow(at: Assignment, method: Method, ranks: int) -> Dataflow:
    """The dataflow of a span's rows. On one rank all layouts are the same."""
    return OWN if ranks == 1 else _FLOWS[at.layout.name][method is Method.GATHER]


class Routes(NamedTuple):
    """The spans of a step, in row order, by dataflow. All lists hold indices of `spans`, ascending."""

    spans: tuple[Span, ...]
    starts: tuple[int, ...]
    """The first row of each span; rows of a span are contiguous."""
    num_rows: int
    num_sharded: int
    """Rows [0, num_sharded) are projected by head on every rank."""
    own: tuple[int, ...]
    """Attend on every rank with its own heads over its own pages: the first spans."""
    to_owner: tuple[tuple[int, ...], ...]
    """Per home: queries travel there."""
    to_all: tuple[int, ...]
    full_striped: tuple[int, ...]
    full_local: tuple[tuple[int, ...], ...]
    """Per home: computed there alone."""
    gathered: tuple[int, ...]
    gathered_full: tuple[int, ...]

    @property
    def ranks(self) -> int:
        return len(self.to_owner)

    @property
    def has_queries(self) -> bool:
        """Whether any rank sends queries (exchange A)."""
        return bool(self.to_all) or any(self.to_owner)

    @property
    def has_outputs(self) -> bool:
        """Whether any rank sends outputs back (exchange B)."""
        return self.has_queries or bool(self.full_striped)

    def count(self, indices: Sequence[int]) -> int:
        """Rows of the named spans."""
        if self.num_rows == len(self.spans):
            return len(indices)
        return sum([self.spans[i].count for i in indices])

    def rows(self, indices: Sequence[int]) -> list[int]:
        """Row numbers of the named spans, in order."""
        if self.num_rows == len(self.spans):
            return list(indices)
        starts, spans = self.starts, self.spans
        return [row for i in indices for row in range(starts[i], starts[i] + spans[i].count)]


def route(spans: Sequence[Span], ranks: int) -> Routes:
    """`Routes` of spans that are already `ordered`."""
    starts: list[int] = []
    by_flow: dict[Dataflow, list[int]] = {flow: [] for flow in ALL_FLOWS}
    to_owner: list[list[int]] = [[] for _ in range(ranks)]
    full_local: list[list[int]] = [[] for _ in range(ranks)]
    row = num_sharded = 0
    at = method = None
    for index, span in enumerate(spans):
        if span.present is not at or span.method is not method:  # seldom: they are in order
            at, method = span.present, span.method
            flow = dataflow(at, method, ranks)
            homes = to_owner if flow is OWNED else full_local if flow is FULL_LOCAL else None
            alike = by_flow[flow] if homes is None else homes[at.home]
        alike.append(index)
        starts.append(row)
        row += span.count
        if not flow.full:
            num_sharded = row
    return Routes(
        spans=tuple(spans),
        starts=tuple(starts),
        num_rows=row,
        num_sharded=num_sharded,
        own=tuple(by_flow[OWN]),
        to_owner=tuple(map(tuple, to_owner)),
        to_all=tuple(by_flow[STRIPED]),
        full_striped=tuple(by_flow[FULL_STRIPED]),
        full_local=tuple(map(tuple, full_local)),
        gathered=tuple(by_flow[OWN_GATHERED]),
        gathered_full=tuple(by_flow[FULL_GATHERED]),
    )


class Ride(NamedTuple):
    """New KV of rows [row, row + count) and one group: from a rank that computed it to a holder that did not."""

    src: int
    dst: int
    group: int
    row: int
    num_rows: int


def rides(routes: Routes, topo: Topology, block_size: int) -> list[Ride]:
    """The new KV that rides in exchange A, in row order. GQA only: with MLA every rank computes every latent."""
    found: list[Ride] = []
    for span, row in zip(routes.spans, routes.starts, strict=True):
        if topo.ranks == 1 or not may_ride(span.present, span.next):
            continue
        position = span.start
        while position < span.end:
            block = position // block_size
            stop = min((block + 1) * block_size, span.end)
            first = row + position - span.start
            for src, dst, group in _links(span.present, span.next, block % topo.ranks, topo):
                found.append(Ride(src, dst, group, first, stop - position))
            position = stop
    return found


def may_ride(present: Assignment, staged: Assignment | None) -> bool:
    """False only where every holder computes what it stores."""
    if present.layout is CP:
        return False
    if staged is None:
        return present.layout in (DOP, DCP)
    return True


@lru_cache(maxsize=4096)
def _links(
    present: Assignment, staged: Assignment | None, block: int, topo: Topology
) -> tuple[tuple[int, int, int], ...]:
    """(source, destination, group) of the new KV of one block; periodic in the block with period T."""
    links: list[tuple[int, int, int]] = []
    for group in range(topo.groups):
        computed = range(present.home, present.home + 1)
        if present.layout.projection is Projection.SHARDED:
            computed = topo.ranks_of(group)
        need = set(holders(present, block, group, topo))
        if staged is not None:
            need.update(holders(staged, block, group, topo))
        links += [(computed[0], dst, group) for dst in sorted(need.difference(computed))]
    return tuple(links)


class GatherPart(NamedTuple):
    """Blocks [first, stop) of a history, of which rank r sends `tokens[r]` tokens (of each group)."""

    first: int
    stop: int
    tokens: tuple[int, ...]


def gather_parts(span: Span, topo: Topology, block_size: int, max_tokens: int) -> list[GatherPart]:
    """The history before `span.start` in pieces of at most `max_tokens` (one block at least); none if it has none."""
    step = max(1, max_tokens // block_size)
    num_blocks = -(-span.start // block_size)
    parts = []
    for first in range(0, num_blocks, step):
        stop = min(first + step, num_blocks)
        short = stop * block_size - min(stop * block_size, span.start)
        tokens = []
        for rank in range(topo.ranks):
            local = local_blocks(span.present, rank, 0, stop, topo)
            blocks = len(local) - len(local_blocks(span.present, rank, 0, first, topo))
            holds_last = blocks > 0 and local[-1] == stop - 1
            tokens.append(blocks * block_size - (short if holds_last else 0))
        parts.append(GatherPart(first, stop, tuple(tokens)))
    return parts


@dataclass(frozen=True, slots=True)
class Widths:
    """Elements that travel: per row and head, per token and group, per row."""

    heads: int
    """Heads of one shard."""
    query: int
    output: int
    lse: int
    """Elements that one fp32 takes in the compute dtype's buffer."""
    kv: int
    """New, in the compute type."""
    hidden: int
    history: int
    """As it is stored, in elements of that type."""
    down: int = 0
    """Of the latent down-projection, what each rank computes for all; 0: every rank computes it whole."""


def widths(
    spec: ModelSpec, ranks: int, itemsize: int, history: int | None = None, *, divided: bool = False
) -> Widths:
    """`itemsize` of the compute type; `history`: elements of a token's stored KV, where they are not those computed;
    `divided`: ranks share the latent down-projection, if it has equal parts for them."""
    att = spec.attention
    kv = sum(field.width for field in spec.kv_fields(ranks))
    heads = att.num_heads // ranks
    if isinstance(att, MLASpec):
        query, output = att.latent_dim, att.kv_lora_rank
        down = att.down_part(ranks) if divided else 0
    else:
        query, output, down = att.head_dim, att.head_dim, 0
    return Widths(heads, query, output, 4 // itemsize, kv, spec.hidden_size, history or kv, down)


Counts = list[list[int]]
"""[source][destination] elements."""


def counts_a(routes: Routes, ridden: Sequence[Ride], w: Widths) -> Counts:
    """Elements of exchange A: queries, then the new KV that rides with them."""
    everywhere = routes.count(routes.to_all)
    rows = [routes.count(indices) + everywhere for indices in routes.to_owner]
    counts = [[n * w.heads * w.query for n in rows] for _ in range(routes.ranks)]
    for ride in ridden:
        counts[ride.src][ride.dst] += ride.num_rows * w.kv
    return counts


def counts_b(routes: Routes, w: Widths) -> Counts:
    """Elements of exchange B: whole outputs of the source's own rows, partial ones, and their LSE."""
    partial = routes.count(routes.to_all) + routes.count(routes.full_striped)
    shared = partial * w.heads * (w.output + w.lse)
    return [
        [routes.count(indices) * w.heads * w.output + shared] * routes.ranks for indices in routes.to_owner
    ]


def counts_gather(part: GatherPart, topo: Topology, *, full: bool, w: Widths) -> Counts:
    """Elements of one gathered part: all groups to every rank, or to each rank its own group."""
    groups = topo.groups if full else 1
    return [[tokens * groups * w.history] * topo.ranks for tokens in part.tokens]


class Collective(NamedTuple):
    """A collective of one layer. `counts[source][destination]` elements; for all_reduce [[elements]]."""

    op: str
    counts: tuple[tuple[int, ...], ...]

    def received(self, rank: int, ranks: int) -> float:
        """Elements that `rank` receives from others (of an all-reduce: what its optimum is, 2 (T-1)/T n)."""
        if self.op == "all_reduce":
            return 2 * (ranks - 1) / ranks * self.counts[0][0]
        return sum(row[rank] for src, row in enumerate(self.counts) if src != rank)


def layer_collectives(
    routes: Routes,
    ridden: Sequence[Ride],
    topo: Topology,
    block_size: int,
    gather_tokens: int,
    w: Widths,
    candidates: Counts | None = None,
) -> list[Collective]:
    """What every rank enters in each layer, in order: the down-projection's parts, exchange A, candidates, gathers,
    exchange B, two closings.

    `candidates`: ranked tokens that all ranks give to all, in a layer with an indexer (`layout.selection`).
    """
    listed: list[Collective] = []
    if w.down:
        listed.append(_collective("all_gather_v", [[routes.num_rows * w.down] * routes.ranks] * routes.ranks))
    if routes.has_queries or ridden:
        listed.append(_collective("all_to_all_v", counts_a(routes, ridden, w)))
    if candidates is not None and routes.ranks > 1:
        listed.append(_collective("all_gather_v", candidates))
    for indices, full in ((routes.gathered, False), (routes.gathered_full, True)):
        for index in indices:
            for part in gather_parts(routes.spans[index], topo, block_size, gather_tokens):
                op = "all_gather_v" if gathers_whole(topo, full=full) else "all_to_all_v"
                listed.append(_collective(op, counts_gather(part, topo, full=full, w=w)))
    if routes.has_outputs:
        listed.append(_collective("all_to_all_v", counts_b(routes, w)))
    closing = _collective("all_reduce", [[routes.num_rows * w.hidden]])
    return [*listed, closing, closing]


def gathers_whole(topo: Topology, *, full: bool) -> bool:
    """Whether a gather gives every rank the same (else each rank is sent its own KV group)."""
    return full or topo.groups == 1


def _collective(op: str, counts: Counts) -> Collective:
    return Collective(op, tuple(map(tuple, counts)))
