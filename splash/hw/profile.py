"""The schema of a hardware profile: what one rank's device can do. Every number carries its provenance."""

import math
from dataclasses import dataclass, fields

from splash.core.errors import ConfigError

PROVENANCES = ("measured", "fitted", "datasheet", "assumed")


class ProfileError(ConfigError):
    """A hardware profile is unknown, unreadable, incomplete or has a value that cannot be."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number and where it comes from. The unit is that of the field it stands in."""

    value: float
    source: str

    def __post_init__(self) -> None:
        if not math.isfinite(self.value) or self.value <= 0:
            raise ValueError(f"value must be a positive number, not {self.value:g}")
        if self.source.partition(":")[0] not in PROVENANCES:
            raise ValueError(f"source must start with one of {', '.join(PROVENANCES)} and a colon")


@dataclass(frozen=True, slots=True)
class Memory:
    """Capacity in bytes; bandwidths in bytes per second."""

    capacity: Quantity
    bandwidth: Quantity
    """Of reading weights and KV once, as a step does."""
    copy_bandwidth: Quantity
    """Of copying pages and shards from a peer's memory, in bytes copied."""


@dataclass(frozen=True, slots=True)
class Gemm:
    """Floating point operations per second (a multiply-add is two) of a large matrix product, by dtype."""

    float32: Quantity
    bfloat16: Quantity


@dataclass(frozen=True, slots=True)
class Collective:
    """Seconds of one call are `alpha + received / beta`, with the bytes that one rank receives.

    A ring counts: an all-reduce of n bytes over T ranks receives 2 (1 - 1/T) n.
    """

    alpha: Quantity
    """Seconds."""
    beta: Quantity
    """Bytes per second."""


@dataclass(frozen=True, slots=True)
class Collectives:
    """The collectives that a communicator has."""

    all_reduce: Collective
    all_gather: Collective
    reduce_scatter: Collective
    all_to_all: Collective
    broadcast: Collective


@dataclass(frozen=True, slots=True)
class Host:
    """Costs outside the device, in seconds."""

    step_overhead: Quantity
    """Of one step beside its forward pass, without the share per request."""


@dataclass(frozen=True, slots=True)
class HardwareProfile:
    """What one rank has. The name is the profile's file name."""

    name: str
    device: str
    """The kind of device, for people: no code asks for it."""
    summary: str
    memory: Memory
    gemm: Gemm
    collective: Collectives
    host: Host

    @classmethod
    def keys(cls) -> tuple[str, ...]:
        """The keys of a profile's file: all fields but the name."""
        return tuple(field.name for field in fields(cls) if field.name != "name")
