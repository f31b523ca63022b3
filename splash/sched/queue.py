"""Requests that wait for pages: first come first served, preempted ones before all."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from splash.sched.record import Record


class WaitingQueue:
    """In arrival order; a preempted request returns to the front."""

    def __init__(self) -> None:
        self._records: deque[Record] = deque()

    def add(self, record: Record) -> None:
        self._records.append(record)

    def put_back(self, record: Record) -> None:
        self._records.appendleft(record)

    def peek(self) -> Record | None:
        return self._records[0] if self._records else None

    def pop(self) -> Record:
        return self._records.popleft()

    def remove(self, record: Record) -> None:
        self._records.remove(record)

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records)
