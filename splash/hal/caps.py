"""A port's capabilities, asked for instead of vendor names."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Caps:
    """What a port can do; a false capability raises NotSupported when used."""

    block_size: int
    """Tokens a page holds."""
    dtypes: tuple[str, ...]
    """Compute and KV dtypes, the default first."""
    mapped_peers: bool
    """A rank can read its peers' pools directly (one-sided copies)."""
    max_ranks: int


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One device that a probe found."""

    index: int
    name: str
    memory_bytes: int
    arch: str = ""
