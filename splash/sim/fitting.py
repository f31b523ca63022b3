"""By how much a model does not fit a deployment, and which single change would do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from splash.hw.profile import HardwareProfile
from splash.kv.geometry import MIB
from splash.layout.capacity import RankMemory
from splash.layout.layouts import LAYOUTS, Projection
from splash.sim.settings import Settings
from splash.spec.model import ModelSpec
from splash.spec.storage import WEIGHT_STORAGES

GIB = 1 << 30
MOST_RANKS = 512
"""That are proposed."""


@dataclass(frozen=True, slots=True)
class Remedies:
    """Single changes that each suffice; None where that one cannot."""

    ranks: int | None
    """The fewest that do."""
    memory_fraction: float | None
    """The smallest that does, in whole percent."""
    weights: str | None
    """The widest type that does."""

    def __str__(self) -> str:
        """For people: the options."""
        options = [
            "" if self.ranks is None else f"--ranks {self.ranks}",
            "" if self.memory_fraction is None else f"--memory-fraction {self.memory_fraction:.2f}",
            "" if self.weights is None else f"--dtype {self.weights}",
        ]
        return " or ".join(filter(None, options)) or "no single option"


def remedies(
    settings: Settings,
    memory: Callable[[Settings], RankMemory],
    lacking: Callable[[Settings, RankMemory], int],
    *,
    ranks: Iterable[int],
) -> Remedies:
    """What would make `lacking`, the bytes that are too few on a rank, vanish; `ranks`: those that can be had."""

    def does(changed: Settings) -> bool:
        return lacking(changed, memory(changed)) <= 0

    present = memory(settings)
    smaller = [
        storage
        for storage in WEIGHT_STORAGES.values()
        if memory(replace(settings, weights=storage.name)).weights.own < present.weights.own
    ]
    narrower = [storage.name for storage in sorted(smaller, key=lambda storage: -storage.linear)]
    return Remedies(
        ranks=next(
            (n for n in sorted(ranks) if n > settings.ranks and does(replace(settings, ranks=n))), None
        ),
        memory_fraction=next(
            (
                percent / 100
                for percent in range(int(settings.memory_fraction * 100) + 1, 100)
                if lacking(settings, replace(present, fraction=percent / 100)) <= 0
            ),
            None,
        ),
        weights=next((name for name in narrower if does(replace(settings, weights=name))), None),
    )


def possible_ranks(spec: ModelSpec, profile: HardwareProfile, at_most: int) -> Iterator[int]:
    """Numbers of ranks that divide the model's heads, and that the profile can price: several nodes need a network."""
    joined = profile.node.network_bandwidth is not None and profile.node.network_latency is not None
    most = at_most if joined else min(at_most, int(profile.node.ranks.value))
    return filter(spec.fits_ranks, range(1, most + 1))


def shortage(model: str, memory: RankMemory, lacking: int, would_do: Remedies) -> str:
    """One line: how much a rank lacks, of what, and what would do."""
    weights = memory.weights
    ranks = f"{weights.ranks} rank" + ("s" if weights.ranks > 1 else "")
    beside = f" beside {_size(memory.reserve)} in reserve" if memory.reserve else ""
    return (
        f"{model} does not fit on {ranks}: weights with a slot for every head shard take {_size(weights.full)}{beside}"
        f" of {_size(memory.usable)} a rank ({100 * memory.fraction:.3g}% of {_size(memory.device)}),"
        f" {_size(lacking)} too much for any KV; {_without_slots(memory)}; what would do: {would_do}"
    )


def _without_slots(memory: RankMemory) -> str:
    """What layouts would have that need the own shard alone: a pool has the slots whatever the layout is."""
    sharded = [layout for layout in LAYOUTS.values() if layout.projection is Projection.SHARDED]
    room = memory.free(sharded[0])
    alone = f"with the own shard alone they take {_size(memory.weights.own)}"
    if room < memory.page_bytes:
        return f"even {alone}"
    names = ", ".join(layout.name for layout in sharded)
    return f"{alone} and would leave {_size(room)} for KV in {names}, but a pool has the slots whatever the layout"


def _size(num_bytes: float) -> str:
    unit, name = (GIB, "GiB") if num_bytes >= GIB / 10 else (MIB, "MiB")
    return f"{num_bytes / unit:.1f} {name}"
