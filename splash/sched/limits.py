"""What a deployment allows, as far as a policy has to know it: room by layout, batches, and what a move takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from splash.core.config import SchedulerConfig
from splash.kv.slots import MemoryPlan
from splash.layout.capacity import PoolRoom, request_tokens, total_tokens
from splash.layout.holders import Topology
from splash.layout.layouts import LAYOUTS
from splash.sched.batch import RowBytes


@dataclass(frozen=True, slots=True)
class Room:
    """What one layout holds, in tokens."""

    tokens: int
    """Distinct tokens over all ranks."""
    request_tokens: int
    """Of the longest single request."""
    state_tokens: int = 0
    """Those that one request's recurrent state takes the room of."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the deployment allows: what batches are made of, and what a move has to carry."""

    room: Mapping[str, Room]
    """By layout."""
    max_running: int
    token_budget: int
    row_bytes: RowBytes
    token_bytes: int
    """KV of one token, all groups and layers."""
    groups: int
    """KV groups."""
    shard_bytes: int
    """One head shard of the attention weights that change place."""


def limits_of(memory: MemoryPlan, topo: Topology, config: SchedulerConfig, rows: RowBytes) -> Limits:
    """Of ranks with this memory, under a scheduler of this configuration."""
    geometry, size = memory.geometry, memory.pages.block_size
    room = PoolRoom(geometry.kv_pages(1), geometry.kv_pages(topo.ranks))
    one_state = PoolRoom(memory.state_pages, memory.state_pages)
    return Limits(
        room={
            name: Room(
                total_tokens(layout, room, topo, size),
                request_tokens(layout, room, topo, size),
                total_tokens(layout, one_state, topo, size),
            )
            for name, layout in LAYOUTS.items()
        },
        max_running=config.max_running,
        token_budget=config.token_budget,
        row_bytes=rows,
        token_bytes=memory.pages.token_bytes * topo.groups,
        groups=topo.groups,
        shard_bytes=geometry.shard_bytes,
    )
