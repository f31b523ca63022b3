"""The rows of a step: which requests compute what, and which of them get a token."""

from __future__ import annotations

from collections import Counter

from splash.layout.layouts import Assignment
from splash.layout.rows import section_key_of
from splash.sched.batch import RowBytes, chunk_method, share_budget
from splash.sched.decodes import Decodes
from splash.sched.draft import PlanDraft
from splash.sched.flight import ByPlace
from splash.sched.growth import Growth
from splash.sched.observe import rows_by
from splash.sched.record import Record
from splash.sched.roster import Roster
from splash.sched.shared import Shared
from splash.sched.step import Chunk


class Rows:
    """Of the plan in the making: one row a decode, the rest of the token budget for prompts."""

    def __init__(
        self, shared: Shared, *, roster: Roster, decodes: Decodes, growth: Growth, row_bytes: RowBytes
    ) -> None:
        self._roster = roster
        self._decodes = decodes
        self._growth = growth
        self._config = shared.config
        self._progress = shared.progress
        self._row_bytes = row_bytes
        self._ranks = shared.store.topo.ranks
        self._chunk_places: Counter[Assignment] = Counter()
        self._counted: Counter[Assignment] | None = None
        """The places of the decode rows in `by_place`."""
        self._by_place: ByPlace = {}, []

    def take(self, draft: PlanDraft) -> None:
        """Choose the plan's rows; who takes part has them computed from now on."""
        decodes = self._decodes
        self._chunk_places.clear()
        ending: list[Record] = []
        if not decodes.settled or len(decodes.records) < len(self._roster.running):
            ending = self._take_chunks(draft)
            decodes.settle(draft.step)
        draft.sampling = decodes.records + ending
        for record in decodes.records:
            record.computed += 1
        draft.decodes = decodes.ids
        decodes.join(ending)

    def by_place(self) -> ByPlace:
        """Rows of the last plan by layout and by rank. In the background: they are counted if they can have changed."""
        places = self._decodes.places
        if self._chunk_places or places is not self._counted:
            all_places = places + self._chunk_places if self._chunk_places else places
            self._by_place = rows_by(all_places, self._ranks)
            self._counted = None if self._chunk_places else places
        return self._by_place

    def _take_chunks(self, draft: PlanDraft) -> list[Record]:
        """Chunks of prompts; returns those whose prompts end with them."""
        decodes = self._decodes.records
        prompts = [record for record in self._roster.running.values() if not record.decoding]
        budget = max(1, self._config.token_budget - len(decodes))
        taken: list[tuple[Record, Chunk]] = []
        for record, count in share_budget(prompts, budget, self._config.max_chunk):
            if record.running and self._growth.grow(record, record.computed + count, draft):
                method = chunk_method(record.present, record.computed, count, self._row_bytes, self._ranks)
                taken.append((record, Chunk(record.id, record.computed, count, method)))
                record.computed += count
        taken = [(record, chunk) for record, chunk in taken if record.running]
        alone = not taken and not decodes and not self._progress.in_flight
        if prompts and alone and prompts[0].running:
            # without room where it is: admitted anew under the target
            self._roster.preempt(prompts[0], draft)
        taken.sort(key=lambda entry: section_key_of(entry[0].present, False, entry[0].id))
        draft.chunks = [chunk for _, chunk in taken]
        for record, chunk in taken:
            self._chunk_places[record.present] += chunk.count
        return [record for record, _ in taken if record.computed == len(record.tokens)]
