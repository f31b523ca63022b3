"""Pages for the requests that run, and who gives way where there are none: none of them does while a result is in
flight, since results tell who has ended, and free what was read last.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import groupby

from splash.kv.blocks import Block
from splash.kv.pool import PageState
from splash.sched.decodes import Decodes
from splash.sched.draft import PlanDraft
from splash.sched.record import Record
from splash.sched.roster import Roster
from splash.sched.shared import Shared
from splash.sched.step import PageGrant
from splash.sched.transition import Transitions


class Growth:
    """Blocks for tokens; where memory is short, moves are given up first, then the newest requests."""

    def __init__(self, shared: Shared, *, roster: Roster, decodes: Decodes, transitions: Transitions) -> None:
        self._store = shared.store
        self._roster = roster
        self._decodes = decodes
        self._transitions = transitions
        self._progress = shared.progress

    def short(self) -> bool:
        """There may be no pages for the decodes of the next step, without anybody giving way."""
        self._decodes.settle(self._progress.planned + 1)
        need = self._most_needed()
        if self._store.lacking(need):
            self._store.collect(self._progress.collected)
        return bool(self._store.lacking(need))

    def grow_decodes(self, draft: PlanDraft) -> None:
        """A block for every decode whose last one is full; preempts the newest when memory is short."""
        self._decodes.settle(draft.step)
        for record in self._full():
            if record.running and not self.grow(record, record.computed + 1, draft):
                self._roster.preempt(record, draft)

    def grow(self, record: Record, length: int, draft: PlanDraft) -> bool:
        """Blocks for `length` tokens. Where memory is short: what is free already, else give up moves, else preempt
        the newest request with pages there. False if that is the record itself, or if results are in flight."""
        while lacking := self._allocate(record, length, draft):
            if self._store.collect(self._progress.collected):
                continue
            if self._progress.in_flight:
                return False
            self._progress.short = draft.step
            if self._transitions.relieve(self._progress.planned, lacking):
                self._withdraw(draft)
                continue
            newest = next(
                r for r in reversed(self._roster.running.values()) if r is record or _holds_page(r, lacking)
            )
            if newest is record:
                return False
            self._roster.preempt(newest, draft)
        return True

    def grow_ahead(self, num_steps: int) -> int:
        """The blocks that the decodes take in `num_steps` steps, in the order in which single steps would take them;
        what retires comes free after the first. Returns the steps for which there was room."""
        records, size = self._decodes.records, self._store.block_size
        draft = PlanDraft(self._progress.planned + 1)
        due: list[tuple[int, int]] = [
            (step, place)
            for place, record in enumerate(records)
            for step in range(record.room - record.computed, num_steps, size)
        ]
        for step, growing in groupby(sorted(due), key=_first):
            if step:
                self._store.collect(self._progress.collected)
            together = [records[place] for _, place in growing]
            need = [self._store.fresh(record.present, len(record.blocks)) for record in together]
            if self._store.lacking(need[0] if len(need) == 1 else summed(need)):
                return step
            for record in together:
                self._allocate(record, record.room + 1, draft)
        self._store.collect(self._progress.collected)
        return num_steps

    def _full(self) -> list[Record]:
        """Decodes whose next token needs another block."""
        return [record for record in self._decodes.records if record.computed >= record.room]

    def _most_needed(self) -> Sequence[int]:
        """Pages per rank that suffice for the decodes' next tokens; a coarse answer where that is few anyway."""
        store = self._store
        ranks, groups = store.topo.ranks, store.topo.groups
        coarse = [2 * groups * len(self._decodes.records)] * ranks
        if not store.lacking(coarse):
            return coarse
        needs = [[0] * ranks]
        for record in self._full():
            first = len(record.blocks)
            needs += [store.missing(record.blocks, at, first, first + 1) for at in record.assignments]
        return summed(needs)

    def _withdraw(self, draft: PlanDraft) -> None:
        """Of the plan's grants those that a staging had which was given up since: others may get their pages."""
        draft.grants = [grant for grant in draft.grants if self._held(grant)]

    def _held(self, grant: PageGrant) -> bool:
        block = self._roster.running[grant.request].blocks[grant.block]
        return block.copies.get((grant.group, grant.rank)) == grant.page

    def _allocate(self, record: Record, length: int, draft: PlanDraft) -> list[int]:
        """Blocks for `length` tokens, or the ranks that lack pages for them; then nothing changed."""
        store, blocks = self._store, record.blocks
        first, stop = len(blocks), store.num_blocks(length)
        places = record.assignments
        need: Sequence[int]
        if len(places) == 1 and stop == first + 1:
            need = store.fresh(places[0], first)
        else:
            need = summed(store.missing(blocks, at, first, stop) for at in places)
        lacking = store.lacking(need)
        if lacking:
            return lacking
        for index in range(first, stop):
            block = Block()
            blocks.append(block)
            for at, state in zip(places, (PageState.LIVE, PageState.RESERVED), strict=False):
                for kv_group, rank, page in store.add_copies(block, index, at, state):
                    draft.grants.append(PageGrant(record.id, index, kv_group, rank, page))
        record.room = len(blocks) * store.block_size
        return []


def summed(needs: Iterable[Sequence[int]]) -> list[int]:
    """Element-wise sum of page counts per rank."""
    return [sum(column) for column in zip(*needs, strict=True)]


def _first(pair: tuple[int, int]) -> int:
    return pair[0]


def _holds_page(record: Record, ranks: Collection[int]) -> bool:
    """Whether a request has a page on one of `ranks`; recurrent state is on all."""
    return bool(record.state) or any(rank in ranks for block in record.blocks for _, rank in block.copies)
