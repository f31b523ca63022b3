"""A layout is a placement of a request's KV and a projection of its rows (DESIGN §1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import cache

from splash.core.errors import ConfigError


class Placement(Enum):
    """Where the KV of a request lies."""

    BY_HEAD = "by_head"
    """Each rank holds the KV groups of its own heads; with MLA (one group) every rank holds a copy."""
    OWNER = "owner"
    """One rank, the request's home, holds everything."""
    STRIPED = "striped"
    """Block i lies on rank (i + home) mod T."""


class Projection(Enum):
    """Which attention weights compute a request's rows."""

    SHARDED = "sharded"
    """Every rank computes its own head shard."""
    FULL = "full"
    """The holder computes all heads; all shards must be resident there."""


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """One of the five below: they are compared by identity and pickled by name."""

    name: str
    placement: Placement
    projection: Projection

    def __str__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Callable[[str], Layout], tuple[str]]:
        return layout_named, (self.name,)


TP = Layout("tp", Placement.BY_HEAD, Projection.SHARDED)
DOP = Layout("dop", Placement.OWNER, Projection.SHARDED)
DCP = Layout("dcp", Placement.STRIPED, Projection.SHARDED)
DP = Layout("dp", Placement.OWNER, Projection.FULL)
CP = Layout("cp", Placement.STRIPED, Projection.FULL)

LAYOUTS: dict[str, Layout] = {x.name: x for x in (TP, DP, CP, DOP, DCP)}
SECTION_ORDER: tuple[Layout, ...] = (TP, DCP, DOP, CP, DP)
"""The global order of sections in a step: sharded projections first (DESIGN §2)."""

_BY_PARTS = {(x.placement, x.projection): x for x in LAYOUTS.values()}
_TOGGLED = {DOP: DP, DP: DOP, DCP: CP, CP: DCP}


def layout_named(name: str) -> Layout:
    """The layout called `name`; ConfigError lists the known ones."""
    try:
        return LAYOUTS[name]
    except KeyError:
        raise ConfigError(f"unknown layout '{name}'; known: {', '.join(LAYOUTS)}") from None


def with_projection(layout: Layout, projection: Projection) -> Layout:
    """The same placement under another projection: the toggle dp <-> dop, cp <-> dcp; by_head has no full one
    (KeyError)."""
    return layout if layout.projection is projection else _TOGGLED[layout]


def with_placement(layout: Layout, placement: Placement) -> Layout:
    """Another placement under the same projection; by_head has no full one (KeyError)."""
    return _BY_PARTS[placement, layout.projection]


@dataclass(frozen=True, slots=True, eq=False)
class Assignment:
    """A layout applied to one request. `home` is the owner, or the stripe's offset; unused under tp.

    There is one object for equal values: they are compared and looked up by identity, at every boundary.
    """

    layout: Layout
    home: int = 0

    def __new__(cls, layout: Layout, home: int = 0) -> Assignment:
        return _KNOWN.setdefault((layout, home), object.__new__(cls))  # in one step: ranks may be threads

    @property
    def has_home(self) -> bool:
        """Whether `home` means anything."""
        return self.layout.placement is not Placement.BY_HEAD

    def same_place(self, other: Assignment) -> bool:
        """Whether both mean the same holders of every block."""
        same = self.layout.placement is other.layout.placement
        return same and (self.home == other.home or not self.has_home)

    def __str__(self) -> str:
        return f"{self.layout.name}@{self.home}" if self.has_home else self.layout.name

    def __reduce__(self) -> tuple[Callable[[Layout, int], Assignment], tuple[Layout, int]]:
        return assigned, (self.layout, self.home)


_KNOWN: dict[tuple[Layout, int], Assignment] = {}


@cache
def assigned(layout: Layout, home: int) -> Assignment:
    """`Assignment(layout, home)`, faster."""
    return Assignment(layout, home)
