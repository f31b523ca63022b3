"""The requests that decode, in the order of their rows: made anew when one joins or moves, thinned when one leaves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from operator import attrgetter

from splash.layout.layouts import Assignment
from splash.layout.rows import section_key_of
from splash.sched.record import Record

PLACE, ID = attrgetter("present"), attrgetter("id")


class Decodes:
    """It changes seldom, so that steady steps do nothing here: what happens is noted, and `settle` acts on it."""

    def __init__(self, running: Mapping[int, Record]) -> None:
        self._running = running
        self.records: list[Record] = []
        self.ids: tuple[int, ...] = ()
        self._places: Counter[Assignment] | None = None
        """None: to be counted."""
        self._left: list[Assignment] = []
        self._stale = False

    @property
    def settled(self) -> bool:
        return not self._stale and not self._left

    @property
    def places(self) -> Counter[Assignment]:
        """Rows by place; another object whenever they change. Counted when asked for: not at a boundary."""
        if self._places is None:
            self._places = Counter(map(PLACE, self.records))
        return self._places

    def disturb(self) -> None:
        """A request has begun to decode, or moved."""
        self._stale = True

    def leave(self, record: Record) -> None:
        """A request that decodes leaves; it still counts for the step in flight."""
        self._left.append(record.present)

    def settle(self) -> None:
        """Bring the list up to date."""
        if self._stale:
            self.records, self._places = self._in_order(), None
        elif self._left:
            self.records = [r for r in self.records if r.decoding]
            if self._places is not None:
                self._places = self._places - Counter(self._left)
        else:
            return
        self.ids = tuple(r.id for r in self.records)
        self._left, self._stale = [], False

    def _in_order(self) -> list[Record]:
        """Place by place, which are few, in the order of their sections."""
        by_place: dict[Assignment, list[Record]] = {}
        for record in self._running.values():
            if record.decoding:
                by_place.setdefault(record.present, []).append(record)
        places = sorted(by_place, key=lambda at: section_key_of(at, True, 0))
        return [record for at in places for record in sorted(by_place[at], key=ID)]
