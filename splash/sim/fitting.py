"""By how much a model does not fit a deployment, and which single change would do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from splash.hw.profile import HardwareProfile
from splash.layout.capacity import RankMemory
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
    beside = f" beside {memory.reserve / GIB:.1f} GiB in reserve" if memory.reserve else ""
    return (
        f"{model} does not fit on {ranks}: weights with a slot for every head shard take {weights.full / GIB:.1f} GiB"
        f" (with the own shard alone {weights.own / GIB:.1f}){beside} of {memory.usable / GIB:.1f} GiB a rank"
        f" ({memory.fraction:.0%} of {memory.device / GIB:.1f}), {lacking / GIB:.1f} GiB too much for any KV;"
        f" what would do: {would_do}"
    )
