"""What a rank is started with, and what it says until it serves."""

from __future__ import annotations

from dataclasses import dataclass

from splash.kv.slots import MemoryPlan
from splash.spec.model import ModelSpec


@dataclass(frozen=True, slots=True)
class WorkerArgs:
    """What every rank is started with; picklable."""

    folder: str
    spec: ModelSpec
    memory: MemoryPlan
    dtype: str
    max_positions: int
    gather_tokens: int = 2048
    """Workspace bound of a gathered history, tokens."""
    gaps: bool = False
    check: bool = False
    """Assert every collective against the plan, and that replicated rows are (debug)."""


@dataclass(frozen=True, slots=True)
class LayerLoaded:
    """A rank's message after each layer that it has loaded: as many of them, on every rank, as there are layers."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A rank's message once it has loaded and is warm."""

    rank: int
    shard_bytes: int
    weight_bytes: int
    """Weights that stay in their place."""
    pool_bytes: int
    load_s: float
