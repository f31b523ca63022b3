"""What a model makes of a deployment, before anybody has the machine: memory by part, KV of every layout, and a map of
the best layout over batch and context. A map's requests are equal, and spread over the ranks as evenly as can be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile

import numpy as np

from splash.hw.cost import CostModel
from splash.hw.profile import HardwareProfile
from splash.layout.capacity import RankMemory
from splash.layout.holders import Topology
from splash.layout.layouts import LAYOUTS, Layout
from splash.sched.batch import RowBytes
from splash.sim.deployment import lacking_bytes, memory_of, precision_of, what_fits
from splash.sim.even import Even
from splash.sim.fitting import Remedies
from splash.sim.settings import Settings
from splash.spec.model import ModelSpec
from splash.spec.storage import (
    WeightBytes,
    WeightStorage,
    field_bytes,
    kv_storage,
    rank_weight_bytes,
    weight_storage,
)
from splash.spec.tensors import Part

SHORTEST = 1024
"""Tokens of the shortest context in a map; each next one is four times as long, up to the model's longest."""
CHUNKS = tuple(2**n for n in range(8, 15))
"""Prompt rows of a step in a map."""


@dataclass(frozen=True, slots=True)
class LayoutRoom:
    """What one layout leaves on a rank, and what all ranks hold together."""

    weight_bytes: int
    """Of a rank."""
    free_bytes: int
    """Of a rank, for KV and states; negative if the weights do not fit."""
    kv_tokens: int
    """Over all ranks."""
    longest_request: int
    """Tokens of one that is alone; the model may know fewer."""

    @property
    def fits(self) -> bool:
        return self.kv_tokens > 0


@dataclass(frozen=True, slots=True)
class CachedField:
    """What layers keep of a token, in all KV groups."""

    name: str
    layers: int
    token_bytes: float
    """Of one token and layer."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A step of equal requests under each layout."""

    batch: int
    """Requests in the step."""
    chunk: int
    """Rows of each."""
    context: int
    """Decode: tokens that each sees, its own included. Prefill: tokens of each that are cached already."""
    seconds: Mapping[str, float]
    """Of the step, by layout."""
    holding: frozenset[str]
    """The layouts whose KV has room for it."""

    @property
    def fastest(self) -> str:
        """Whether or not there is room."""
        return min(self.seconds, key=self.seconds.__getitem__)

    @property
    def best(self) -> str | None:
        """The fastest that has room; None: no layout has."""
        possible = [name for name in self.seconds if name in self.holding]
        return min(possible, key=self.seconds.__getitem__, default=None)

    @property
    def lead(self) -> float | None:
        """How much longer the second of those that have room takes, as a share; None if there is no second."""
        times = sorted(s for name, s in self.seconds.items() if name in self.holding)
        return times[1] / times[0] - 1 if len(times) > 1 else None


@dataclass(frozen=True, slots=True)
class Map:
    """Cells by row and column."""

    phase: str
    """decode or prefill."""
    prompts: int
    """Prefill: prompts at once, which share the rows of a row of the map."""
    rows: tuple[int, ...]
    """Decode: batches. Prefill: prompt rows of a step."""
    columns: tuple[int, ...]
    """Contexts."""
    cells: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True)
class Plan:
    """A model on hardware. Made of what was asked for; everything else is computed when it is asked for."""

    model: str
    spec: ModelSpec
    profile: HardwareProfile
    settings: Settings

    def check(self) -> None:
        """ConfigError if the settings make no sense for the model; nothing is said of whether it fits."""
        _ = self.memory

    @cached_property
    def memory(self) -> RankMemory:
        """One rank's, term by term."""
        self.spec.check_ranks(self.settings.ranks)
        return memory_of(self.spec, self.profile, self.settings)

    @cached_property
    def topo(self) -> Topology:
        return Topology(self.settings.ranks, self.spec.kv_groups(self.settings.ranks))

    @cached_property
    def layouts(self) -> dict[str, LayoutRoom]:
        return {name: self._room(self.memory, layout) for name, layout in LAYOUTS.items()}

    @property
    def fits(self) -> bool:
        """Whether a pool has room for KV beside a slot for every head shard: then all layouts have, and it deploys."""
        return self.lacking <= 0

    @property
    def lacking(self) -> int:
        """Bytes that a rank lacks for a slot for every head shard and a page; 0 or less: none."""
        return lacking_bytes(self.spec, self.settings, self.memory)

    @property
    def remedies(self) -> Remedies:
        """What would make it fit."""
        return what_fits(self.spec, self.profile, self.settings)

    @property
    def counted(self) -> dict[str, LayoutRoom]:
        """As capacity tables are usually computed, REFERENCE §4 too; see `counted_weights`."""
        storage = weight_storage(self.settings.weights)
        weights = counted_weights(self.spec, storage, ranks=self.settings.ranks)
        memory = replace(self.memory, weights=weights)
        return {name: self._room(memory, layout) for name, layout in LAYOUTS.items()}

    @property
    def cached(self) -> tuple[CachedField, ...]:
        """What a token takes in the cache, by field."""
        ranks, storage = self.settings.ranks, kv_storage(self.settings.kv)
        counts: dict[str, tuple[int, float]] = {}
        for layer in range(self.spec.num_layers):
            for field in self.spec.layer_kv_fields(layer, ranks):
                size = self.topo.groups * field_bytes(self.spec, field, storage) / field.pool
                counts[field.name] = counts.get(field.name, (0, 0.0))[0] + 1, size
        return tuple(CachedField(name, layers, size) for name, (layers, size) in counts.items())

    @property
    def whole_kda_bytes(self) -> int:
        """Of recurrent layers' weights, if a rank held them whole."""
        storage = weight_storage(self.settings.weights)
        return rank_weight_bytes(self.spec, storage, ranks=1).parts.get(Part.KDA, 0)

    @cached_property
    def even(self) -> Even:
        return Even(self.settings.ranks, self.cost.keeps, RowBytes.of(self.spec))

    @cached_property
    def cost(self) -> CostModel:
        return CostModel(
            spec=self.spec,
            profile=self.profile,
            ranks=self.settings.ranks,
            precision=precision_of(self.spec, self.settings),
            max_rows=max(self.settings.token_budget, CHUNKS[-1]) + self.settings.max_running,
        )

    # ---- maps

    @cached_property
    def maps(self) -> tuple[Map, ...]:
        """Decode; prefill of one prompt, and of one on every rank."""
        ranks = self.settings.ranks
        return (self.decode_map(), *(self.prefill_map(n) for n in sorted({1, ranks})))

    def decode_map(self) -> Map:
        batches = tuple(takewhile(lambda n: n <= self.settings.max_running, (2**n for n in range(11))))
        columns = contexts(self.spec.max_position)
        return Map("decode", 0, batches, columns, tuple(self._decodes(batch, columns) for batch in batches))

    def prefill_map(self, prompts: int) -> Map:
        """Prompts that share a step's rows, each with as much history."""
        longest = self.spec.max_position
        rows = tuple(n for n in CHUNKS if prompts <= n <= longest)
        columns = (0, *contexts(longest)[:-1])
        cells = tuple(tuple(self._chunks(prompts, n // prompts, start) for start in columns) for n in rows)
        return Map("prefill", prompts, rows, columns, cells)

    def _decodes(self, batch: int, columns: Sequence[int]) -> tuple[Cell, ...]:
        """One row of a map: the contexts are priced together."""
        context = np.array(columns, dtype=np.float64)
        seconds = {
            name: np.broadcast_to(
                self.cost.step(self.even.decodes(layout, batch, context)).total, context.shape
            )
            for name, layout in LAYOUTS.items()
        }
        return tuple(
            Cell(
                batch,
                1,
                tokens,
                {name: float(times[at]) for name, times in seconds.items()},
                self._holding(batch, tokens),
            )
            for at, tokens in enumerate(columns)
        )

    def _chunks(self, prompts: int, count: int, start: int) -> Cell:
        seconds = {
            name: self.cost.step_s(self.even.chunks(layout, prompts, start, count))
            for name, layout in LAYOUTS.items()
        }
        return Cell(prompts, count, start, seconds, self._holding(prompts, start + count))

    def _holding(self, requests: int, tokens: int) -> frozenset[str]:
        return frozenset(
            name for name, layout in LAYOUTS.items() if self.memory.holds(layout, self.topo, requests, tokens)
        )

    def _room(self, memory: RankMemory, layout: Layout) -> LayoutRoom:
        return LayoutRoom(
            weight_bytes=memory.weight_bytes(layout),
            free_bytes=memory.free(layout),
            kv_tokens=memory.tokens(layout, self.topo),
            longest_request=memory.longest_request(layout, self.topo),
        )


def contexts(longest: int) -> tuple[int, ...]:
    """Fourfold steps from `SHORTEST`, and the longest itself."""
    return (*takewhile(lambda n: n < longest, (SHORTEST * 4**n for n in range(20))), longest)


def counted_weights(spec: ModelSpec, storage: WeightStorage, *, ranks: int) -> WeightBytes:
    """As REFERENCE §4 counts: every parameter at the size of a quantised matrix's, vocabulary and router at that of a
    plain one's; no scales, norms or hyper-connections."""
    plain = {Part.VOCABULARY, Part.ROUTER}
    counts = rank_weight_bytes(spec, WeightStorage("counts", 1, 1), ranks=ranks)
    parts: dict[Part, int] = {
        part: count * (storage.plain if part in plain else storage.linear)
        for part, count in counts.parts.items()
        if part not in (Part.NORMS, Part.HYPER)
    }
    return WeightBytes(ranks, parts, 0, counts.shard * storage.linear)
