"""What rows count as, by class: one for the decodes of each layout, and one for its chunks by method and form.

`tally.py` says the same of one row after another; here it is said in tables, to be looked up for many rows at once.
"""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from splash.layout.layouts import LAYOUTS, Layout, Placement, Projection
from splash.layout.rows import Method

Numbers = npt.NDArray[Any]


class Counts(NamedTuple):
    """Of a class of rows, how often each of them counts, 0 or 1; of many rows, sums. Fields are as in `Tally`, `Rows`
    and `Traffic`."""

    decodes: Any
    chunked: Any
    shard: Any
    shard_absorbed: Any
    halved: Any
    to_stripes: Any
    striped: Any
    unscattered: Any
    """Rows that forbid to divide all of them over the ranks between layers."""
    whole: Any
    whole_absorbed: Any
    """Rows that every rank projects with all heads' weights: its part of them."""


class AtHome(NamedTuple):
    """As `Counts`, of rows that count on their owner alone."""

    whole: Any
    whole_absorbed: Any
    received: Any
    """Its query comes from all ranks."""


class Way(NamedTuple):
    """How a row is attended."""

    kind: Any
    """Of decodes: 0 by head, 1 by an owner, 2 in stripes. Of chunks: as in `tally.KINDS`."""
    alone: Any
    """By its owner, others do not attend; else all ranks alike."""
    divided: Any
    """Each rank has a part of its pairs and projections."""
    owned: Any
    striped: Any
    proposes: Any
    """Where its indexer scores keys, it is not attended alone: the best are told."""
    gathered: Any


class _Class(NamedTuple):
    counts: Counts
    at_home: AtHome
    way: Way


def _decodes(layout: Layout) -> _Class:
    sharded, owned, striped = _parts(layout)
    return _Class(
        Counts(
            decodes=True,
            chunked=False,
            shard=sharded,
            shard_absorbed=sharded,
            halved=striped and not sharded,
            to_stripes=striped and sharded,
            striped=striped,
            unscattered=sharded or not owned,
            whole=False,
            whole_absorbed=False,
        ),
        AtHome(owned and not sharded, owned and not sharded, owned and sharded),
        Way(
            kind=owned + 2 * striped,
            alone=owned,
            divided=striped,
            owned=owned,
            striped=striped,
            proposes=striped,
            gathered=False,
        ),
    )


def _chunks(layout: Layout, method: Method, absorbed: bool) -> _Class:
    """`absorbed`: only that form can be had of it, if not for its method."""
    sharded, owned, striped = _parts(layout)
    exchanged, gathered = method is Method.EXCHANGE, method is Method.GATHER
    absorbed = absorbed or exchanged
    all_heads = exchanged or not sharded
    everywhere = striped and not sharded and not exchanged
    at_home = owned and not sharded
    return _Class(
        Counts(
            decodes=False,
            chunked=True,
            shard=sharded,
            shard_absorbed=sharded and absorbed,
            halved=striped and exchanged and not sharded,
            to_stripes=striped and exchanged and sharded,
            striped=striped and exchanged,
            unscattered=sharded or exchanged,
            whole=everywhere,
            whole_absorbed=everywhere and absorbed,
        ),
        AtHome(at_home, at_home and absorbed, owned and sharded and exchanged),
        Way(
            kind=2 * ((owned or striped) and all_heads) + absorbed,
            alone=owned and all_heads,
            divided=striped and all_heads,
            owned=owned,
            striped=striped,
            proposes=striped or (owned and gathered),
            gathered=gathered,
        ),
    )


def _parts(layout: Layout) -> tuple[bool, bool, bool]:
    """Whether sharded, owned, striped."""
    placement = layout.placement
    sharded = layout.projection is Projection.SHARDED
    return sharded, placement is Placement.OWNER, placement is Placement.STRIPED


DECODES = {layout: number for number, layout in enumerate(LAYOUTS.values())}
"""Class of the decodes of a layout."""
CHUNKS = {
    layout: {method: len(DECODES) + 2 * (len(Method) * number + place) for place, method in enumerate(Method)}
    for layout, number in DECODES.items()
}
"""Of the chunks of a layout and method; the next one, if only the absorbed form can be had."""
_CLASSES = [
    *map(_decodes, LAYOUTS.values()),
    *(
        _chunks(layout, method, absorbed)
        for layout, method, absorbed in product(LAYOUTS.values(), Method, (False, True))
    ),
]
COUNTS = np.array([one.counts for one in _CLASSES], np.float64)
AT_HOME = np.array([one.at_home for one in _CLASSES], np.float64).T
WAYS = np.array([one.way for one in _CLASSES]).T
