"""Layouts over time in bounded memory: a fixed number of time buckets, merged by two when they run out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil


@dataclass(slots=True)
class Bucket:
    """What was in force during one stretch of time, weighted by seconds."""

    seconds: float = 0.0
    requests: dict[str, float] = field(default_factory=dict)
    """Request-seconds by layout."""
    targets: dict[str, float] = field(default_factory=dict)
    """Seconds by target layout."""
    tokens: float = 0.0

    def add(self, seconds: float, running: Mapping[str, int], target: str) -> None:
        self.seconds += seconds
        self.targets[target] = self.targets.get(target, 0.0) + seconds
        for name, number in running.items():
            if number:
                self.requests[name] = self.requests.get(name, 0.0) + number * seconds

    def merge(self, other: Bucket) -> None:
        self.seconds += other.seconds
        self.tokens += other.tokens
        for mine, theirs in ((self.requests, other.requests), (self.targets, other.targets)):
            for name, value in theirs.items():
                mine[name] = mine.get(name, 0.0) + value

    def copy(self) -> Bucket:
        return Bucket(self.seconds, dict(self.requests), dict(self.targets), self.tokens)


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the picture: mean requests by layout, the prevailing target, tokens per second."""

    requests: dict[str, float]
    target: str
    tokens_per_s: float

    @property
    def total(self) -> float:
        return sum(self.requests.values())


@dataclass(frozen=True, slots=True)
class History:
    """The buckets at one moment."""

    t: float = 0.0
    bucket_s: float = 1.0
    buckets: tuple[Bucket, ...] = ()

    def columns(self, at_most: int) -> list[Column]:
        """The whole run in at most that many columns of equal time, oldest first.

        A column is a whole number of buckets, so columns already drawn keep still between rescalings.
        """
        step = max(1, ceil(len(self.buckets) / max(1, at_most)))
        least_s = 0.5 * step * self.bucket_s
        return [_column(self.buckets[i : i + step], least_s) for i in range(0, len(self.buckets), step)]

    def column_s(self, at_most: int) -> float:
        """Seconds in one of those columns."""
        return self.bucket_s * max(1, ceil(len(self.buckets) / max(1, at_most)))


def _column(buckets: tuple[Bucket, ...], least_s: float) -> Column:
    """A rate is taken over `least_s` at least, so that a column that has just begun shows no peak."""
    whole = Bucket()
    for bucket in buckets:
        whole.merge(bucket)
    seconds = whole.seconds or 1.0
    return Column(
        requests={name: value / seconds for name, value in whole.requests.items()},
        target=max(whole.targets, key=whole.targets.__getitem__, default=""),
        tokens_per_s=whole.tokens / max(seconds, least_s),
    )


class Band:
    """Integrates what is in force over time; holds `capacity` buckets at most."""

    def __init__(self, *, capacity: int = 512, bucket_s: float = 0.02) -> None:
        if capacity < 2 or capacity % 2:
            raise ValueError(f"capacity must be even and positive, not {capacity}")
        self._capacity = capacity
        self._bucket_s = bucket_s
        self._buckets: list[Bucket] = []
        self._t = 0.0

    def advance(self, t: float, running: Mapping[str, int], target: str, tokens: int = 0) -> None:
        """`running` and `target` were in force from the last call until `t`, and `tokens` came in that time."""
        begin, length = self._t, t - self._t
        if length <= 0:
            if tokens and self._buckets:
                self._buckets[-1].tokens += tokens
            return
        while t >= self._capacity * self._bucket_s:
            self._merge_pairs()
        for index in range(int(begin / self._bucket_s), int(t / self._bucket_s) + 1):
            low = max(begin, index * self._bucket_s)
            seconds = min(t, (index + 1) * self._bucket_s) - low
            if seconds > 0:
                bucket = self._bucket(index)
                bucket.add(seconds, running, target)
                bucket.tokens += tokens * seconds / length
        self._t = t

    def _bucket(self, index: int) -> Bucket:
        while len(self._buckets) <= index:
            self._buckets.append(Bucket())
        return self._buckets[index]

    def _merge_pairs(self) -> None:
        self._bucket_s *= 2
        pairs = [self._buckets[i : i + 2] for i in range(0, len(self._buckets), 2)]
        for first, *rest in pairs:
            for other in rest:
                first.merge(other)
        self._buckets = [first for first, *_ in pairs]

    def snapshot(self) -> History:
        """Cheap: only the last bucket still changes, the others are shared."""
        if not self._buckets:
            return History(t=self._t, bucket_s=self._bucket_s)
        done = tuple(self._buckets[:-1])
        return History(t=self._t, bucket_s=self._bucket_s, buckets=(*done, self._buckets[-1].copy()))
