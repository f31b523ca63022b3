"""The weight slots of one rank on their way: drain pages out, fetch shards, and give slots back to KV."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from splash.kv.blocks import Block, KVStore
from splash.kv.pool import PageState, SlotState
from splash.sched.bound import Bound
from splash.sched.copies import CopyGroup, CopyLedger, Draft
from splash.sched.record import Record
from splash.sched.step import PageMove, Shadow, StateMove

MIN_CHUNK_BYTES = 64 << 10
"""Shards are fetched in runs of a quarter of a step's budget, but not smaller than this."""


class Phase(Enum):
    """Where a rank's residency stands."""

    OWN = "own"
    DRAINING = "draining"
    FETCHING = "fetching"
    FULL = "full"


@dataclass(slots=True, eq=False)
class Evacuation:
    """One page leaving a draining slot of its rank; reads stay on the old page until it has moved."""

    record: Record
    index: int
    kv_group: int
    old_page: int
    new_page: int
    copies: CopyGroup
    shadowed: bool
    """Its block still receives tokens: appends go to both pages."""
    announced: bool = False

    @property
    def ready(self) -> bool:
        return self.copies.complete and (self.announced or not self.shadowed)


@dataclass(slots=True, eq=False)
class RankResidency:
    """Residency of one rank, driven by `grow`, `advance` and `shrink`; every phase is a serving state."""

    rank: int
    store: KVStore
    ledger: CopyLedger
    phase: Phase = Phase.OWN
    spare: list[int] = field(default_factory=list)
    """Pages reserved for evacuations that have not begun."""
    evacuations: list[Evacuation] = field(default_factory=list)
    fetch: CopyGroup | None = None
    budget: int = 0
    """Bytes that may be copied in a step, as of the last one."""
    bound: Bound | None = None
    """Of draining, then of fetching."""
    abandoned: list[tuple[CopyGroup, list[int]]] = field(default_factory=list)
    """Fetches given up while copies were in flight, with the slots they still write to."""
    undone: list[Evacuation] = field(default_factory=list)
    """Moves given up after their shadow was announced."""
    opening: tuple[int, list[int]] | None = None
    """(last step that may read them, slots) of replicas that are being given back."""

    @property
    def others(self) -> list[int]:
        return [j for j in range(self.store.topo.ranks) if j != self.rank]

    @property
    def settled(self) -> bool:
        """Nothing is under way."""
        return self.phase in (Phase.OWN, Phase.FULL) and self.opening is None and not self.abandoned

    def shortage(self, margin: int) -> int:
        """Pages that are missing to grow now; 0 if it can."""
        pool = self.store.pools[self.rank]
        occupied = sum(len(pool.occupied(j)) for j in self.others)
        free_outside = pool.available - sum(
            self.store.geometry.slot_pages - len(pool.occupied(j)) for j in self.others
        )
        return max(0, occupied + margin - free_outside)

    def grow(self, margin: int, step: int, token_bytes: int) -> bool:
        """Begin to make every shard resident, if the room is there: drain the slots and reserve the pages
        that the evacuation needs, at once. False, and nothing changed, if it is not."""
        assert self.phase is Phase.OWN
        pool = self.store.pools[self.rank]
        if self.opening is not None or self.abandoned or self.shortage(margin):
            return False
        for j in self.others:
            pool.drain(j)
        occupied = sum(len(pool.occupied(j)) for j in self.others)
        self.spare = pool.take(occupied, PageState.RESERVED)
        self.phase = Phase.DRAINING
        page_bytes = token_bytes * self.store.block_size
        self.bound = Bound(step, self.ledger.busiest_bytes + occupied * page_bytes)
        return True

    def advance(self, records: Iterable[Record], token_bytes: int, step: int, budget: int) -> None:
        """One step of background work: move pages out of draining slots, then fetch the shards."""
        self.budget = budget
        self._give_back()
        if self.phase is Phase.DRAINING:
            self._evacuate(records, token_bytes)
            if all(self.store.pools[self.rank].drained(j) for j in self.others):
                self._fetch(step, budget)
        if self.bound is not None:
            self.bound.offer(budget)

    def take_undone(self) -> list[PageMove]:
        """Ends the shadows of moves given up since the last plan, where the old page is still in use: a copy that
        was released is appended to no more, and a grant ends the shadow of what it replaces."""
        undone, self.undone = self.undone, []
        return [
            PageMove(e.record.id, e.index, e.kv_group, self.rank, e.old_page)
            for e in undone
            if e.index < len(e.record.blocks)
            and e.record.blocks[e.index].copies.get((e.kv_group, self.rank)) == e.old_page
        ]

    def new_shadows(self) -> list[Shadow]:
        """Double writes that the next plan must announce."""
        fresh = [e for e in self.evacuations if not e.announced]
        for evacuation in fresh:
            evacuation.announced = True
        return [Shadow(e.record.id, e.index, e.kv_group, self.rank, e.new_page) for e in fresh if e.shadowed]

    def finish_moves(self, last_step: int) -> list[PageMove]:
        """At a batch boundary: evacuated pages take over; their old pages retire."""
        moves = []
        for evacuation in [e for e in self.evacuations if e.ready]:
            self.evacuations.remove(evacuation)
            block = evacuation.record.blocks[evacuation.index]
            key = evacuation.kv_group, self.rank
            pool = self.store.pools[self.rank]
            pool.set_state(evacuation.new_page, pool.state(evacuation.old_page))
            block.copies[key] = evacuation.new_page
            self.store.retire(self.rank, evacuation.old_page, last_step)
            moves.append(
                PageMove(
                    evacuation.record.id,
                    evacuation.index,
                    evacuation.kv_group,
                    self.rank,
                    evacuation.new_page,
                )
            )
        return moves

    def move_states(self, records: Iterable[Record], step: int) -> list[StateMove]:
        """At a batch boundary: pages of recurrent states leave draining slots, within the copy budget but one at least.
        Every step changes a state as a whole, so it is copied by its rank before the step that uses the new page."""
        if self.phase is not Phase.DRAINING or not self.store.state_pages:
            return []
        moves: list[StateMove] = []
        limit = max(1, self.budget // self.store.geometry.page_bytes)
        pool = self.store.pools[self.rank]
        for record in records:
            pages = record.state[self.rank]
            for place, page in enumerate(pages):
                if page > self.store.geometry.null_page or len(moves) == limit:
                    continue
                pages[place] = self.spare.pop()
                pool.set_state(pages[place], PageState.RECURRENT)
                self.store.retire(self.rank, page, step)
                moves.append(StateMove(record.id, place, self.rank, pages[place]))
        return moves

    def finish_fetch(self) -> bool:
        """At a batch boundary: True when every shard has just become resident."""
        if self.phase is not Phase.FETCHING or self.fetch is None or not self.fetch.complete:
            return False
        for j in self.others:
            self.store.pools[self.rank].filled(j)
        self.phase, self.fetch, self.bound = Phase.FULL, None, None
        return True

    def shrink(self, last_step: int) -> None:
        """No step after `last_step` reads the replicas (or fetching them is given up): slots become KV pages."""
        pool = self.store.pools[self.rank]
        if self.phase is Phase.FULL:
            self.opening = (last_step, self.others)
        elif self.phase is Phase.FETCHING and self.fetch is not None:
            self.ledger.cancel(self.fetch)
            self.abandoned.append((self.fetch, self.others))
            self.fetch = None
        elif self.phase is Phase.DRAINING:
            for evacuation in list(self.evacuations):
                self.drop_evacuation(evacuation, last_step)
            for page in self.spare:
                pool.release(page)
            self.spare = []
            for j in self.others:
                pool.undrain(j)
        self.phase, self.bound = Phase.OWN, None
        self._give_back()

    def evacuations_of(self, record: Record) -> list[Evacuation]:
        return [evacuation for evacuation in self.evacuations if evacuation.record is record]

    def drop_evacuation(self, evacuation: Evacuation, last_step: int) -> None:
        """Give up moving a page: its new page retires (step `last_step` and a copier may still write to it)."""
        self.evacuations.remove(evacuation)
        self.ledger.cancel(evacuation.copies)
        if evacuation.announced:
            self.undone.append(evacuation)
        self.store.retire(self.rank, evacuation.new_page, last_step)

    def pages(self) -> list[int]:
        """Pages in use that no block has: reserved for evacuations."""
        return self.spare + [e.new_page for e in self.evacuations]

    def words(self) -> list[str]:
        """One word a slot, as in the event ResidencyChanged."""
        words = {
            SlotState.KV: "kv",
            SlotState.DRAINING: "draining",
            SlotState.FILLING: "filling",
            SlotState.RESIDENT: "replica",
        }
        slots = self.store.pools[self.rank].slots
        return ["own" if j == self.rank else words[slot] for j, slot in enumerate(slots)]

    def collected(self, step: int) -> None:
        """The result of `step` has arrived: replicas last read by it can be opened."""
        if self.opening is not None and self.opening[0] <= step:
            for j in self.opening[1]:
                self.store.pools[self.rank].open(j)
            self.opening = None

    def _evacuate(self, records: Iterable[Record], token_bytes: int) -> None:
        moving = {e.old_page for e in self.evacuations}
        pool = self.store.pools[self.rank]
        leaving = {
            p
            for j in self.others
            for p in pool.occupied(j)
            if p not in moving and pool.state(p) is PageState.LIVE
        }
        if not leaving:
            return
        for record in records:
            for index, block in enumerate(record.blocks):
                for (kv_group, rank), page in block.copies.items():
                    if rank == self.rank and page in leaving and self.spare:
                        self._move_out(record, index, block, kv_group, page, token_bytes)

    def _move_out(
        self, record: Record, index: int, block: Block, kv_group: int, page: int, token_bytes: int
    ) -> None:
        new_page = self.spare.pop()
        size = self.store.block_size
        tokens = max(0, min(size, record.computed - index * size))
        evacuation = Evacuation(record, index, kv_group, page, new_page, CopyGroup(), shadowed=tokens < size)
        self.evacuations.append(evacuation)
        if tokens:
            self.ledger.add(
                Draft(
                    evacuation.copies,
                    self.rank,
                    self.rank,
                    tokens * token_bytes,
                    0,
                    tokens,
                    block,
                    kv_group,
                    new_page,
                )
            )

    def _fetch(self, step: int, budget: int) -> None:
        pool = self.store.pools[self.rank]
        for page in self.spare:
            pool.release(page)
        self.spare = []
        self.fetch = CopyGroup()
        chunk = max(MIN_CHUNK_BYTES, budget // 4)
        for j in self.others:
            pool.fill(j)
            total = self.store.geometry.shard_bytes
            for first in range(0, total, chunk):
                stop = min(total, first + chunk)
                self.ledger.add(Draft(self.fetch, j, self.rank, stop - first, first, stop, shard=j))
        self.phase = Phase.FETCHING
        self.bound = Bound(step, self.ledger.busiest_bytes)

    def _give_back(self) -> None:
        for entry in list(self.abandoned):
            group, slots = entry
            if group.in_flight == 0:
                self.abandoned.remove(entry)
                for j in slots:
                    self.store.pools[self.rank].open(j)
