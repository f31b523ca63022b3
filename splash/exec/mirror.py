"""Requests as a rank knows them. They follow the deltas of the plans and the tokens that were sampled."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from splash.core.params import SamplingParams
from splash.exec.pages import HeldGroups, PageTable
from splash.exec.states import StateTable
from splash.kv.state import StateFormat
from splash.layout.holders import Topology
from splash.layout.layouts import Assignment
from splash.sched.step import Admit, PageGrant, PageMove, StepPlan


class Sequence:
    """One request: its tokens, its assignments, its pages and its recurrent state on this rank."""

    __slots__ = (
        "at_block",
        "forced",
        "last_token",
        "next",
        "num_prompt",
        "num_tokens",
        "params",
        "present",
        "request",
        "seed",
        "state",
        "table",
        "targets",
        "tokens",
    )

    def __init__(self, admit: Admit, table: PageTable, state: StateTable | None = None) -> None:
        self.request = admit.request
        self.num_tokens = len(admit.tokens)
        self.tokens = np.empty(max(64, 2 * self.num_tokens), dtype=np.int64)
        self.tokens[: self.num_tokens] = admit.tokens
        self.last_token = admit.tokens[-1]
        self.num_prompt = admit.num_prompt
        self.params: SamplingParams = admit.params
        self.seed = admit.seed
        self.forced = admit.forced
        self.present: Assignment = admit.at
        self.next: Assignment | None = None
        self.table = table
        self.state = state
        self.at_block = -1
        self.targets: list[tuple[int, int]] = []
        """`table.targets` of block `at_block`, while nothing changed them."""

    @property
    def forced_token(self) -> int | None:
        """What follows the known tokens whatever is sampled, if that was given."""
        index = self.num_tokens - self.num_prompt
        return self.forced[index] if index < len(self.forced) else None

    def append(self, token: int) -> None:
        if self.num_tokens == len(self.tokens):
            self.tokens = np.concatenate([self.tokens, np.empty_like(self.tokens)])
        self.tokens[self.num_tokens] = token
        self.last_token = token
        self.num_tokens += 1

    def targets_of(self, block: int) -> list[tuple[int, int]]:
        """(group, page) on this rank that new tokens of `block` go to."""
        if block != self.at_block:
            self.targets = self.table.targets(block, self.present, self.next)
            self.at_block = block
        return self.targets

    def moved(self) -> None:
        """Its assignment or its pages have changed."""
        self.at_block = -1


class Mirror:
    """All running requests, and the shards that this rank may read.

    `zero` clears pages when they are granted, `copy` copies a page within this rank. `state`: the format of recurrent
    states, if the model has any. `version` grows whenever the dataflow of a request may change.
    """

    def __init__(
        self,
        *,
        rank: int,
        topo: Topology,
        block_size: int,
        zero: Callable[[list[int]], None],
        copy: Callable[[int, int], None],
        state: StateFormat | None = None,
    ) -> None:
        self.rank = rank
        self.topo = topo
        self.block_size = block_size
        self.sequences: dict[int, Sequence] = {}
        self.resident: set[int] = {rank}
        self.version = 0
        self._held = HeldGroups(topo, rank)
        self._zero = zero
        self._copy = copy
        self._state = state

    def apply(self, plan: StepPlan) -> None:
        """The plan's changes, in their order: what is granted may lie in a slot that the plan gives back, a staging may
        follow a flip of the same request."""
        if not plan.changes:
            return
        for rank, shards in plan.residents:
            if rank == self.rank:
                self.resident.clear()
                self.resident.update(shards)
        self._apply_requests(plan)
        self._apply_state_moves(plan)
        self._apply_pages(plan)
        for requests, at in plan.flips:
            for request in requests:
                sequence = self.sequences[request]
                sequence.present, sequence.next = at, None
                sequence.moved()
        for request, staged in plan.stages:
            sequence = self.sequences[request]
            sequence.next = staged
            sequence.moved()
        self.version += bool(plan.gone or plan.admits or plan.flips or plan.stages or plan.state_moves)

    def _apply_requests(self, plan: StepPlan) -> None:
        for request in plan.gone:
            self.sequences.pop(request, None)
        for admit in plan.admits:
            table = PageTable(self._held)
            self.sequences[admit.request] = Sequence(admit, table, self._new_state(admit))

    def _new_state(self, admit: Admit) -> StateTable | None:
        """A state of zeros."""
        if self._state is None:
            return None
        pages = admit.state[self.rank]
        self._zero(list(pages))
        return StateTable(self._state, pages)

    def _apply_state_moves(self, plan: StepPlan) -> None:
        for request, place, rank, page in plan.state_moves:
            table = self.sequences[request].state
            if rank == self.rank and table is not None:
                self._copy(int(table.pages[place]), page)
                table.move(place, page)

    def _apply_pages(self, plan: StepPlan) -> None:
        """Grants, shadows and moves of this rank; what is granted is cleared first, unless copies will fill it."""
        fresh = [grant.page for grant in plan.grants if grant.rank == self.rank and not grant.filled]
        fresh += [shadow.page for shadow in plan.shadows if shadow.rank == self.rank]
        if fresh:
            self._zero(fresh)
        placed: list[PageGrant | PageMove] = [*plan.grants, *plan.moves]
        for new in placed:
            if new.rank == self.rank:
                self.sequences[new.request].table.set(new.block, new.group, new.page)
                self.sequences[new.request].moved()
        for request, block, group, rank, page in plan.shadows:
            if rank == self.rank:
                self.sequences[request].table.shadow(block, group, page)
                self.sequences[request].moved()
