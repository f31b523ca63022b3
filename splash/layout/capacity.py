"""KV capacity of a layout: arithmetic shared by planner, simulator and engine (REFERENCE §4)."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from splash.core.errors import ConfigError
from splash.layout.holders import Topology
from splash.layout.layouts import Layout, Placement, Projection
from splash.spec.model import ModelSpec
from splash.spec.storage import KVStorage, WeightBytes, WeightStorage, block_bytes, rank_weight_bytes


@dataclass(frozen=True, slots=True)
class PoolRoom:
    """Pages per rank that KV may use with only the own shard resident, and with every shard resident."""

    own: int
    full: int

    def pages(self, layout: Layout) -> int:
        return self.full if layout.projection is Projection.FULL else self.own


def pages_per_block(layout: Layout, topo: Topology) -> int:
    """Pages that one block takes over all ranks: T under by_head, G elsewhere (one page a KV group)."""
    return topo.ranks if layout.placement is Placement.BY_HEAD else topo.groups


def total_tokens(layout: Layout, room: PoolRoom, topo: Topology, block_size: int) -> int:
    """Distinct tokens that all ranks together hold under `layout`, whole blocks.

    by_head: every rank holds one page of each block. Owner and striped: a block is whole on one rank.
    """
    pages = room.pages(layout)
    if layout.placement is Placement.BY_HEAD:
        return pages * block_size
    return topo.ranks * (pages // topo.groups) * block_size


def request_tokens(layout: Layout, room: PoolRoom, topo: Topology, block_size: int) -> int:
    """The longest single request that fits: an owner must hold all of it, a stripe shares it out."""
    pages = room.pages(layout)
    match layout.placement:
        case Placement.BY_HEAD:
            return pages * block_size
        case Placement.OWNER:
            return pages // topo.groups * block_size
        case Placement.STRIPED:
            return pages // topo.groups * topo.ranks * block_size


@dataclass(frozen=True, slots=True)
class RankMemory:
    """One rank's memory, term by term, bytes; made by `rank_memory`. Equal on all ranks, of which it is the fullest."""

    device: int
    """A rank's own memory, or its share of one that ranks divide."""
    fraction: float
    """Of that, for weights and KV."""
    weights: WeightBytes
    reserve: int
    """What else lies there: workspaces, a vision tower."""
    block_size: int
    page_bytes: int
    """One block of one KV group, all layers."""
    state_bytes: int
    """Recurrent state of one request, on each rank."""
    request_tokens: int | None
    """Tokens of a request, over which its state is shared out; None where there is no state."""

    @property
    def usable(self) -> int:
        return int(self.device * self.fraction)

    def weight_bytes(self, layout: Layout) -> int:
        return self.weights.full if layout.projection is Projection.FULL else self.weights.own

    def free(self, layout: Layout) -> int:
        """Bytes for KV and states; negative if the weights do not fit."""
        return self.usable - self.weight_bytes(layout) - self.reserve

    def pages(self, layout: Layout, topo: Topology) -> int:
        """Whole pages that fit on a rank beside the states of the requests whose tokens they hold.

        A state lies on every rank, whoever holds the pages, so where blocks are shared out over T ranks each page
        of a rank stands for T / G blocks.
        """
        blocks = 1.0 if layout.placement is Placement.BY_HEAD else topo.ranks / topo.groups
        tokens = self.request_tokens or 1
        state = self.state_bytes * self.block_size * blocks / tokens
        return max(0, int(self.free(layout) / (self.page_bytes + state)))

    def tokens(self, layout: Layout, topo: Topology) -> int:
        """Distinct tokens that all ranks together hold under `layout`, whole blocks."""
        pages = self.pages(layout, topo)
        return total_tokens(layout, PoolRoom(pages, pages), topo, self.block_size)

    def longest_request(self, layout: Layout, topo: Topology) -> int:
        """Tokens of the longest request that fits when it is alone, whole blocks."""
        pages = max(0, (self.free(layout) - self.state_bytes) // self.page_bytes)
        return request_tokens(layout, PoolRoom(pages, pages), topo, self.block_size)

    def needs(self, layout: Layout, topo: Topology, requests: int, tokens: int) -> int:
        """Bytes that `requests` of `tokens` each take on the rank that has most, spread as evenly as whole requests
        (owner) or blocks (striped) can be."""
        blocks = -(-tokens // self.block_size)
        match layout.placement:
            case Placement.BY_HEAD:
                pages = requests * blocks
            case Placement.OWNER:
                pages = -(-requests // topo.ranks) * blocks * topo.groups
            case Placement.STRIPED:
                pages = -(-requests * blocks // topo.ranks) * topo.groups
        return pages * self.page_bytes + requests * self.state_bytes

    def holds(self, layout: Layout, topo: Topology, requests: int, tokens: int) -> bool:
        """Whether `requests` of `tokens` each fit at once."""
        return self.needs(layout, topo, requests, tokens) <= self.free(layout)

    def most_requests(self, layout: Layout, topo: Topology, tokens: int, at_most: int) -> int:
        """How many requests of `tokens` each fit at once, up to `at_most`."""
        return bisect_right(
            range(1, at_most + 1),
            False,
            key=lambda requests: not self.holds(layout, topo, requests, tokens),
        )


def rank_memory(
    spec: ModelSpec,
    *,
    ranks: int,
    device_bytes: int,
    memory_fraction: float,
    weights: WeightStorage,
    kv: KVStorage,
    block_size: int = 64,
    request_tokens: int | None = None,
    reserve: int = 0,
) -> RankMemory:
    """What lies on each of `ranks` devices of `device_bytes` (REFERENCE §4).

    `request_tokens` is how long requests are, needed where they have a recurrent state. Slots are not padded to
    whole pages here, and scales, norms and hyper-connections count, which the reference's table leaves out.
    """
    if not 0 < memory_fraction <= 1:
        raise ConfigError(
            f"memory fraction {memory_fraction:g} must be above 0 and at most 1 (--memory-fraction)"
        )
    if spec.kda is not None and not request_tokens:
        raise ConfigError(
            f"{spec.model_type} has a recurrent state a request; say how many tokens one has (--request-tokens)"
        )
    return RankMemory(
        device=device_bytes,
        fraction=memory_fraction,
        weights=rank_weight_bytes(spec, weights, ranks=ranks),
        reserve=reserve,
        block_size=block_size,
        page_bytes=block_bytes(spec, kv, ranks=ranks, block_size=block_size),
        state_bytes=spec.state_bytes(ranks, weights.plain),
        request_tokens=None if spec.kda is None else request_tokens,
    )
