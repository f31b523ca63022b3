"""The rows of a step: which requests compute what, and which of them get a token."""

from __future__ import annotations

from collections import Counter

from splash.layout.layouts import Assignment
from splash.layout.rows import section_key_of
from splash.sched.batch import RowBytes, chunk_method, share_budget
from splash.sched.decodes import Decodes
from splash.sched.draft import PlanDraft
from splash.sched.growth import Growth
from splash.sched.observe import rows_by
from splash.sched.record import Record
from splash.sched.roster import Roster
from splash.sched.shared import Shared
from splash.sched.step import Chunk


class Rows:
    """Of the plan in the making, then in flight: one row a decode, the rest of the token budget for prompts."""

    def __init__(
        self, shared: Shared, *, roster: Roster, decodes: Decodes, growth: Growth, row_bytes: RowBytes
    ) -> None:
        self._roster = roster
        self._decodes = decodes
        self._growth = growth
        self._config = shared.config
        self._row_bytes = row_bytes
        self._ranks = shared.store.topo.ranks
        self._sampling: list[Record] = []
        """Records that the step samples for, in the plan's order."""
        self._chunk_places: Counter[Assignment] = Counter()
        self._counted: Counter[Assignment] | None = None
        """The places of the decode rows in `by_place`."""
        self._by_place: tuple[dict[str, int], list[int]] = {}, []

    def take(self, draft: PlanDraft) -> None:
        """Choose the plan's rows; who takes part has them computed from now on."""
        decodes = self._decodes
        self._chunk_places.clear()
        self._sampling = []
        if not decodes.settled or len(decodes.records) < len(self._roster.running):
            self._take_chunks(draft)
            decodes.settle()
        self._sampling = decodes.records + self._sampling
        for record in decodes.records:
            record.computed += 1
        draft.decodes = decodes.ids

    def take_sampling(self) -> list[Record]:
        """Whom the result's tokens belong to."""
        sampling, self._sampling = self._sampling, []
        return sampling

    def by_place(self) -> tuple[dict[str, int], list[int]]:
        """Rows of the plan in flight by layout and by rank."""
        return self._by_place

    def count(self) -> None:
        """While ranks compute the plan's rows: see where they are, if that can have changed."""
        places = self._decodes.places
        if self._chunk_places or places is not self._counted:
            all_places = places + self._chunk_places if self._chunk_places else places
            self._by_place = rows_by(all_places, self._ranks)
            self._counted = None if self._chunk_places else places

    def _take_chunks(self, draft: PlanDraft) -> None:
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
        if prompts and not taken and not decodes and prompts[0].running:
            # alone and without room where it is: admitted anew under the target
            self._roster.preempt(prompts[0], draft)
        taken.sort(key=lambda entry: section_key_of(entry[0].present, False, entry[0].id))
        draft.chunks = [chunk for _, chunk in taken]
        for record, chunk in taken:
            self._chunk_places[record.present] += chunk.count
        self._sampling = [record for record, _ in taken if record.computed == len(record.tokens)]
