"""The requests that decode, in the order of their rows: made anew when one joins or moves, thinned when one leaves.

One joins with the plan after that which ends its prompt, and leaves with the plan that samples its last token or, if a
result ends it sooner, with that: neither waits for results, so that a step can be planned while ranks compute the last.
"""

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
        self._joining: list[Record] = []
        """Their prompts end with the last plan."""
        self._ended: set[int] = set()
        """Ids of those that wait for their last token: they have no row any more."""
        self._ends_step = 0
        """The first plan in which one of the records would have none."""
        self._stale = False

    @property
    def settled(self) -> bool:
        return not self._stale and not self._left and not self._joining

    @property
    def places(self) -> Counter[Assignment]:
        """Rows by place; another object whenever they change. Counted when asked for: not at a boundary."""
        if self._places is None:
            self._places = Counter(map(PLACE, self.records))
        return self._places

    def disturb(self) -> None:
        """Requests have moved."""
        self._stale = True

    def join(self, records: list[Record]) -> None:
        """The plan that was just made ends their prompts: they decode from the next one on."""
        self._joining = records

    def leave(self, record: Record) -> None:
        """A request that decodes leaves; it is in the list, and counts, until the next `settle`."""
        if record.id in self._ended:
            self._ended.remove(record.id)
        else:
            self._left.append(record.present)

    def settle(self, step: int) -> None:
        """Bring the list up to date for the plan of `step`."""
        for record in self._joining:
            if record.running:
                record.decoding = self._stale = True
        self._joining = []
        if step >= self._ends_step:
            self._note_ended()
        if self._stale:
            self.records, self._places = self._in_order(), None
        elif self._left:
            self.records = [r for r in self.records if r.decoding and r.id not in self._ended]
            if self._places is not None:
                self._places = self._places - Counter(self._left)
        else:
            return
        self.ids = tuple(r.id for r in self.records)
        self._ends_step = step + min((r.limit - 1 - r.computed for r in self.records), default=0)
        self._left, self._stale = [], False

    def _note_ended(self) -> None:
        """Those that wait for their last token leave the list."""
        for record in self.records:
            if record.decoding and record.ends:
                self._ended.add(record.id)
                self._left.append(record.present)

    def _in_order(self) -> list[Record]:
        """Place by place, which are few, in the order of their sections."""
        by_place: dict[Assignment, list[Record]] = {}
        for record in self._running.values():
            if record.decoding and record.ends:
                self._ended.add(record.id)
            elif record.decoding:
                by_place.setdefault(record.present, []).append(record)
        places = sorted(by_place, key=lambda at: section_key_of(at, True, 0))
        return [record for at in places for record in sorted(by_place[at], key=ID)]
