"""One rank's pages and their states: who may hand out what, and proof that nothing is lost.

Pure accounting; the bytes lie elsewhere. Exactly one state a page; pins are counts beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum

from splash.core.errors import CapacityError
from splash.kv.geometry import PoolGeometry


class PageState(IntEnum):
    """The states that partition a pool (DESIGN §3)."""

    FREE = 0
    WEIGHT = 1
    RESERVED = 2
    """Target of a staged copy or of an evacuation; not read yet."""
    LIVE = 3
    CACHED = 4
    RETIRING = 5
    """Released, but a step or a copier may still touch it."""
    RECURRENT = 6
    NULL = 7


class SlotState(IntEnum):
    """What a weight slot is used for."""

    KV = 0
    DRAINING = 1
    """Gives out no page; those in use are being moved out."""
    FILLING = 2
    """Its shard is being fetched."""
    RESIDENT = 3


NEVER_RELEASED = frozenset(map(int, (PageState.FREE, PageState.NULL, PageState.WEIGHT)))


class PagePool:
    """The pages of one rank. Ordinary pages are handed out first, those of open slots last."""

    __slots__ = (
        "_counts",
        "_null_page",
        "_ordinary",
        "_pins",
        "_slot_free",
        "_states",
        "available",
        "geometry",
        "prefer_slots",
        "rank",
        "slots",
    )

    def __init__(self, geometry: PoolGeometry, rank: int, *, prefer_slots: bool = False) -> None:
        """Only the own shard is resident. `prefer_slots` hands out slot pages first (tests of evacuation)."""
        self.geometry = geometry
        self.rank = rank
        self._null_page = geometry.null_page
        self.prefer_slots = prefer_slots
        self._states = bytearray(geometry.num_pages)
        self._counts = [0] * len(PageState)
        self._counts[PageState.FREE] = geometry.num_pages
        self._pins: dict[int, int] = {}
        self._ordinary = list(range(geometry.num_pages - 1, geometry.null_page, -1))
        self._slot_free = [list(reversed(geometry.slot(j))) for j in range(geometry.ranks)]
        self.slots = [SlotState.KV] * geometry.ranks
        self.available = geometry.num_pages - 1
        """Pages that can be handed out now: free ordinary ones, and those of open slots."""
        self.set_state(geometry.null_page, PageState.NULL)
        self.drain(rank)
        self.fill(rank)
        self.slots[rank] = SlotState.RESIDENT

    # ---- pages

    def take_one(self, state: PageState) -> int:
        """A free page, now in `state`; CapacityError if there is none."""
        if not self.available:
            raise CapacityError(f"rank {self.rank} has no free page")
        self.available -= 1
        ordinary = self._ordinary
        page = ordinary.pop() if ordinary and not self.prefer_slots else self._pop()
        self._counts[0] -= 1
        self._counts[state] += 1
        self._states[page] = state
        return page

    def take(self, count: int, state: PageState) -> list[int]:
        """`count` free pages, now in `state`; CapacityError, and nothing taken, if there are fewer."""
        if count > self.available:
            raise CapacityError(f"rank {self.rank} has {self.available} free pages, {count} are needed")
        return [self.take_one(state) for _ in range(count)]

    def set_state(self, page: int, state: PageState) -> None:
        """Change a page that is in use."""
        self._counts[self._states[page]] -= 1
        self._counts[state] += 1
        self._states[page] = state

    def set_states(self, pages: Sequence[int], state: PageState) -> None:
        """`set_state` of many: a flip changes hundreds at once."""
        states, counts, value = self._states, self._counts, int(state)
        for page in pages:
            counts[states[page]] -= 1
            states[page] = value
        counts[value] += len(pages)

    def state(self, page: int) -> PageState:
        return PageState(self._states[page])

    def release(self, page: int) -> None:
        """Back to the free pages; it must be neither free nor pinned."""
        if page in self._pins or self._states[page] in NEVER_RELEASED:
            raise AssertionError(
                f"rank {self.rank} page {page}: released while {self.state(page).name}, pins {self._pins.get(page, 0)}"
            )
        self.set_state(page, PageState.FREE)
        if page > self._null_page:
            self._ordinary.append(page)
            self.available += 1
        else:
            slot = page // self.geometry.slot_pages
            self._slot_free[slot].append(page)
            self.available += self.slots[slot] is SlotState.KV

    def release_all(self, pages: Sequence[int]) -> None:
        """`release` of many, each listed once."""
        states = map(self._states.__getitem__, pages)
        held = self._pins.keys().isdisjoint(pages) and NEVER_RELEASED.isdisjoint(states)
        if held and min(pages, default=0) > self._null_page and len(set(pages)) == len(pages):
            self.set_states(pages, PageState.FREE)
            self._ordinary += pages
            self.available += len(pages)
        else:
            for page in pages:
                self.release(page)

    def pin(self, page: int) -> None:
        """A copier reads or writes the page: it is not released before `unpin`."""
        self._pins[page] = self._pins.get(page, 0) + 1

    def unpin(self, page: int) -> None:
        left = self._pins[page] - 1
        if left:
            self._pins[page] = left
        else:
            del self._pins[page]

    def pinned(self, pages: list[int]) -> list[int]:
        """Those of `pages` that a copier has."""
        pins = self._pins
        return [page for page in pages if page in pins] if pins else []

    def unpinned(self, pages: list[int]) -> list[int]:
        """Those of `pages` that no copier has."""
        pins = self._pins
        return [page for page in pages if page not in pins] if pins else pages

    # ---- slots

    def drain(self, slot: int) -> None:
        """Stop handing out pages of the slot."""
        self._expect(slot, SlotState.KV)
        self.slots[slot] = SlotState.DRAINING
        self.available -= len(self._slot_free[slot])

    def undrain(self, slot: int) -> None:
        """Give up a drain: its free pages can be handed out again."""
        self._expect(slot, SlotState.DRAINING)
        self.slots[slot] = SlotState.KV
        self.available += len(self._slot_free[slot])

    def occupied(self, slot: int) -> list[int]:
        """Pages of the slot that are in use."""
        return [
            p for p in self.geometry.slot(slot) if self._states[p] not in (PageState.FREE, PageState.WEIGHT)
        ]

    def drained(self, slot: int) -> bool:
        return len(self._slot_free[slot]) == self.geometry.slot_pages

    def fill(self, slot: int) -> None:
        """All pages of a drained slot become weights; the shard may be written from now on."""
        self._expect(slot, SlotState.DRAINING)
        if not self.drained(slot):
            raise AssertionError(f"rank {self.rank} slot {slot} still holds pages {self.occupied(slot)}")
        self._slot_free[slot].clear()
        for page in self.geometry.slot(slot):
            self.set_state(page, PageState.WEIGHT)
        self.slots[slot] = SlotState.FILLING

    def filled(self, slot: int) -> None:
        self._expect(slot, SlotState.FILLING)
        self.slots[slot] = SlotState.RESIDENT

    def open(self, slot: int) -> None:
        """A replica nobody reads (or a fill that was given up) becomes KV pages."""
        if slot == self.rank or self.slots[slot] not in (SlotState.FILLING, SlotState.RESIDENT):
            raise AssertionError(
                f"rank {self.rank} slot {slot} is {self.slots[slot].name}; it cannot be opened"
            )
        for page in self.geometry.slot(slot):
            self.set_state(page, PageState.FREE)
        self._slot_free[slot] = list(reversed(self.geometry.slot(slot)))
        self.slots[slot] = SlotState.KV
        self.available += self.geometry.slot_pages

    @property
    def full(self) -> bool:
        """Every shard is resident."""
        return all(slot is SlotState.RESIDENT for slot in self.slots)

    # ---- proof

    def counts(self) -> dict[PageState, int]:
        return dict(zip(PageState, self._counts, strict=True))

    def pages_in(self, states: Iterable[PageState]) -> set[int]:
        """All pages in one of `states` (slow: for checks)."""
        wanted = {int(s) for s in states}
        return {page for page, state in enumerate(self._states) if state in wanted}

    def check(self) -> None:
        """AssertionError unless states, counts, free lists and slots agree: the states partition the pool."""
        for state in PageState:
            assert self._states.count(state) == self._counts[state], (
                f"rank {self.rank}: count of {state.name}"
            )
        free = [*self._ordinary, *(p for pages in self._slot_free for p in pages)]
        assert len(free) == len(set(free)) == self._counts[PageState.FREE], f"rank {self.rank}: free lists"
        usable = sum(
            len(x) for x, slot in zip(self._slot_free, self.slots, strict=True) if slot is SlotState.KV
        )
        assert self.available == len(self._ordinary) + usable, f"rank {self.rank}: available"
        assert all(self._states[p] == PageState.FREE for p in free), (
            f"rank {self.rank}: a listed page is in use"
        )
        assert not any(self._states[p] == PageState.FREE for p in self._pins), (
            f"rank {self.rank}: pinned free page"
        )
        for j, slot in enumerate(self.slots):
            weight = all(self._states[p] == PageState.WEIGHT for p in self.geometry.slot(j))
            assert weight == (slot in (SlotState.FILLING, SlotState.RESIDENT)), f"rank {self.rank}: slot {j}"

    def _pop(self) -> int:
        if self._ordinary and not self.prefer_slots:
            return self._ordinary.pop()
        for free, slot in zip(self._slot_free, self.slots, strict=True):
            if free and slot is SlotState.KV:
                return free.pop()
        return self._ordinary.pop()

    def _expect(self, slot: int, state: SlotState) -> None:
        if self.slots[slot] is not state:
            raise AssertionError(f"rank {self.rank} slot {slot} is {self.slots[slot].name}, not {state.name}")
