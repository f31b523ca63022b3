"""Percentiles, None without any value."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Linear interpolation between the sorted values; None without any."""
    if not values:
        return None
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def spread(values: Sequence[float], percents: Iterable[int] = (50, 95)) -> dict[str, float | None]:
    """Percentiles by name: {"p50": ..., "p95": ...}."""
    return {f"p{p}": percentile(values, p) for p in percents}
