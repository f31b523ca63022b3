"""A port's capabilities, asked for instead of vendor names."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Caps:
    """What a port can do; a false capability raises NotSupported when used."""

    block_size: int
    """Tokens a page holds."""
    dtypes: tuple[str, ...]
    """Compute dtypes, the default first."""
    mapped_peers: bool
    """A rank can read its peers' pools directly (one-sided copies)."""
    max_ranks: int
    kept_quantised: tuple[str, ...] = ()
    """Elements of weights (`fp8`, `int8`) that are multiplied as stored; others are dequantised when loaded."""
    divides_replicated: bool = False
    """What every rank needs whole is computed in parts and gathered: weights come slower than messages do."""
    packed_kv: bool = False
    """Attention reads FP8 KV as it is packed; otherwise what a step reads is unpacked first, layer by layer."""


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One device that a probe found."""

    index: int
    name: str
    memory_bytes: int
    """0: not known."""
    arch: str = ""
    free_bytes: int | None = None
    """Of its memory, what could be had when it was probed; None: not known."""
