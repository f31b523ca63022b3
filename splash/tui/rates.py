"""Sliding figures with bounded memory: tokens per second, and percentiles of the latest values."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass


class SlidingRate:
    """Amount per second over the latest `span_s` seconds, or over the latest two marks if those are apart."""

    def __init__(self, *, span_s: float = 2.0, num_marks: int = 512) -> None:
        self._span_s = span_s
        self._num_marks = num_marks
        self._marks: deque[tuple[float, int]] = deque()
        self._sum = 0
        """Of all marks but the first, which only says where the window begins."""

    def add(self, t: float, amount: int) -> None:
        marks = self._marks
        if marks:
            self._sum += amount
        marks.append((t, amount))
        while len(marks) > 2 and (t - marks[1][0] >= self._span_s or len(marks) > self._num_marks):
            marks.popleft()
            self._sum -= marks[0][1]

    def at(self, t: float) -> float:
        """The rate seen at `t`; it falls to zero when nothing has come for long."""
        if len(self._marks) < 2:
            return 0.0
        first, last = self._marks[0][0], self._marks[-1][0]
        length = last - first
        if t - last > max(self._span_s, 3 * length):
            return 0.0
        return self._sum / length if length > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of the latest values; None while there is none."""

    p50: float | None = None
    p95: float | None = None


class Recent:
    """The latest values of one figure."""

    def __init__(self, *, num_values: int = 256) -> None:
        self._values: deque[float] = deque(maxlen=num_values)

    def add(self, value: float | None) -> None:
        if value is not None:
            self._values.append(value)

    def percentiles(self) -> Percentiles:
        if not self._values:
            return Percentiles()
        ordered = sorted(self._values)
        top = len(ordered) - 1
        return Percentiles(p50=ordered[round(0.5 * top)], p95=ordered[round(0.95 * top)])
