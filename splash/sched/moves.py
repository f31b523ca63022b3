"""Requests on their way to other places: each is staged, copied and flipped on its own, and may stay where it is."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from splash.core.events import RequestFlipped, StageCancelled, StageStarted
from splash.layout.layouts import Assignment, Projection, assigned, with_projection
from splash.sched.copies import CopyLedger
from splash.sched.draft import PlanDraft
from splash.sched.goals import choose_goals
from splash.sched.record import Record
from splash.sched.replicas import Projections, Replicas
from splash.sched.shared import Shared
from splash.sched.staging import begin_staging
from splash.sched.step import Stage
from splash.sched.switch import Course

STAGED_STEPS = 8
"""Stagings begin while less than so many steps' worth of copies is queued: pages are held twice for less time."""
PATIENCE_STEPS = 16
"""Steps without a new staging after memory was short; doubled every time."""
RETRY_SHARE = 8
"""A target that was given up is tried again when 1/8 of all pages more are free."""


class Flipped(NamedTuple):
    """A request that flipped at the boundary before `step`, the first that does not read its old pages."""

    record: Record
    step: int
    old: Assignment
    staged_steps: int
    """0: its projection was toggled, which leaves its pages where they are."""
    num_bytes: int


class Moves:
    """State: who is not where its goal is, in order, and what the executors or the store have still to hear of it."""

    def __init__(self, shared: Shared, *, ledger: CopyLedger, replicas: Replicas, course: Course) -> None:
        self._store = shared.store
        self._running = shared.running
        self._config = shared.config
        self._token_bytes = shared.token_bytes
        self._journal = shared.journal
        self._ledger = ledger
        self._replicas = replicas
        self._course = course
        self._moving: dict[int, Record] = {}
        """Records whose placement is not their goal's, staged or not, in order."""
        self._flipped: list[Flipped] = []
        """At the last boundary; settled in the background."""
        self._cancelled: dict[int, Record] = {}
        """Records whose announced staging was given up: the executors must hear."""
        self._stranded_free: int | None = None
        """Free pages when requests were given up; None if none are."""
        self._wait_until, self._patience = 0, PATIENCE_STEPS

    # ---- questions

    @property
    def open(self) -> bool:
        """Somebody moves or waits to move."""
        return bool(self._moving)

    @property
    def unsettled(self) -> bool:
        """Requests have flipped: that is still to be told, and their old pages to be retired."""
        return bool(self._flipped)

    @property
    def stranded(self) -> bool:
        """Requests were given up, and stay where they are until memory comes free."""
        return self._stranded_free is not None

    def waits(self, step: int) -> bool:
        """Memory was short lately: no staging begins in `step`."""
        return step < self._wait_until

    def reached(self) -> bool:
        """Every request has the projection that its goal wants, as far as the shards are there."""
        projected = Projections(self._replicas)
        return all(r.present.layout is projected[r.goal.layout, r.present] for r in self._running.values())

    # ---- where to go

    def set_goal(self, record: Record, goal: Assignment, reason: str, step: int) -> None:
        """Where one running request shall go; a staging that does not lead there is cancelled."""
        record.goal = goal
        record.stranded = False
        staging = record.staging
        if staging is not None and not staging.next.same_place(goal):
            self.cancel(record, reason, step)
        if record.placed:
            self._moving.pop(record.id, None)
        else:
            self._moving[record.id] = record
        self._replicas.touch()

    def retry(self, step: int) -> None:
        """A new target: nobody is stranded, and stagings may begin at once."""
        self._stranded_free = None
        self._wait_until, self._patience = step, PATIENCE_STEPS

    # ---- the batch boundary

    def flip_ready(self, draft: PlanDraft) -> int:
        """Whose copies are all there changes its place; returns how many did."""
        ready = [r for r in self._moving.values() if r.staging is not None and r.staging.ready]
        if not ready:
            return 0
        self._replicas.left(*{r.present for r in ready})
        projected = Projections(self._replicas)
        for record in ready:
            staging = record.staging
            assert staging is not None
            at = assigned(projected[record.goal.layout, staging.next], staging.next.home)
            self._flip(draft, record, at, draft.step - staging.started_step + 1, staging.group.num_bytes)
            record.staging = None
            record.next = None
            self._cancelled.pop(record.id, None)
            del self._moving[record.id]
        return len(ready)

    def toggle(self, draft: PlanDraft) -> int:
        """Give every request the projection that its goal wants, as far as the shards are there."""
        projected = Projections(self._replicas)
        old: list[Assignment] = []
        for record in self._running.values():
            present = record.present
            wanted = projected[record.goal.layout, present]
            if wanted is present.layout or (wanted.projection is Projection.FULL and not record.placed):
                continue
            old.append(present)
            self._flip(draft, record, assigned(wanted, present.home), 0, 0)
            if record.next is not None:
                draft.stages.append(Stage(record.id, record.next))
        if old:
            self._replicas.left(*set(old))
        return len(old)

    def announce(self, draft: PlanDraft) -> None:
        """Stagings that begin or were given up."""
        for record in self._cancelled.values():
            record.next = None
            draft.stages.append(Stage(record.id, None))
        self._cancelled.clear()
        for record in self._moving.values():
            staging = record.staging
            if staging is not None and not staging.announced and staging.grants:
                staging.announced = True
                record.next = staging.next
                draft.grants += staging.grants
                draft.stages.append(Stage(record.id, staging.next))

    def _flip(
        self, draft: PlanDraft, record: Record, at: Assignment, staged_steps: int, num_bytes: int
    ) -> None:
        self._flipped.append(Flipped(record, draft.step, record.present, staged_steps, num_bytes))
        record.present = draft.flips[record.id] = at

    # ---- while the ranks compute

    def settle_flips(self) -> bool:
        """Tell of those that have flipped, and retire their old pages; False if there are none."""
        now, flipped, self._flipped = self._journal.now(), self._flipped, []
        for record, step, old, staged_steps, num_bytes in flipped:
            at = record.present
            self._journal.emit(
                RequestFlipped(
                    now, step, record.id, old.layout.name, at.layout.name, at.home, staged_steps, num_bytes
                )
            )
            self._course.flipped(record.id, step)
            if staged_steps:
                self._store.leave(record.blocks, old, at, step - 1)
                self._replicas.drop_strays(record, step)
        return bool(flipped)

    def check_bounds(self, step: int, budget: int) -> None:
        """Cancel what takes past twice its prediction and some steps; it stays as it is."""
        slack = self._config.transition_slack_steps
        for record in list(self._moving.values()):
            staging = record.staging
            if staging is None:
                continue
            staging.bound.offer(budget)
            if staging.bound.exceeded(step, slack=slack, budget=budget):
                moved = f"{staging.group.done_bytes} of {staging.group.num_bytes} bytes moved"
                reason = staging.bound.said(moved, step, slack=slack)
                self.cancel(record, reason, step)
                self._strand(record, reason, step)

    def retry_stranded(self, step: int) -> None:
        """Put requests that were given up back on the target, once memory has come free."""
        if self._stranded_free is None or self._course.switch is not None:
            return
        pages = sum(pool.geometry.num_pages for pool in self._store.pools)
        if self._store.num_free < self._stranded_free + pages // RETRY_SHARE:
            return
        self._stranded_free = None
        records = list(self._running.values())
        goals, why_not = choose_goals(records, (), self._course.target, self._store)
        if why_not is None:
            for record in [r for r in records if r.stranded]:
                self.set_goal(record, goals[record.id], "memory has come free", step)

    def stage(self, first_step: int, budget: int, margin: int) -> None:
        """Begin stagings in order, as long as the queue is short. One that lacks room keeps the ranks it lacks for
        itself; others go ahead where they need none of these."""
        lacking: set[int] = set()
        for record in self._moving.values():
            if self._ledger.busiest_bytes > STAGED_STEPS * budget or len(lacking) == self._store.topo.ranks:
                break
            if record.staging is None:
                lacking.update(self._begin(record, first_step, lacking, margin))

    def _begin(self, record: Record, first_step: int, avoid: Collection[int], margin: int) -> list[int]:
        next_layout = with_projection(record.goal.layout, Projection.SHARDED)
        lacking = begin_staging(
            record,
            assigned(next_layout, record.goal.home),
            store=self._store,
            ledger=self._ledger,
            token_bytes=self._token_bytes,
            margin=margin,
            step=first_step,
            avoid=avoid,
        )
        staging = record.staging
        if staging is not None:
            self._course.advance(first_step)
            self._journal.emit(
                StageStarted(
                    self._journal.now(),
                    first_step,
                    record.id,
                    record.present.layout.name,
                    record.goal.layout.name,
                    record.present.home,
                    record.goal.home,
                    staging.group.num_bytes,
                    [list(row) for row in staging.links],
                )
            )
        return lacking

    # ---- giving up

    def forget(self, record: Record) -> None:
        """The request leaves."""
        if record.staging is not None:
            self._drop(record)
        self._moving.pop(record.id, None)
        self._cancelled.pop(record.id, None)
        self._flipped = [entry for entry in self._flipped if entry.record is not record]

    def cancel(self, record: Record, reason: str, step: int) -> None:
        """Give up a request's staging: it stays as it is, reserved pages retire after `step`."""
        staging = record.staging
        assert staging is not None
        self._say_cancelled(record, str(staging.next.layout), reason, step)
        if staging.announced:
            self._cancelled[record.id] = record
        self._drop(record)
        self._store.leave(record.blocks, staging.next, record.present, step)
        self._replicas.drop_strays(record, step)

    def yield_room(self, step: int, ranks: Collection[int]) -> bool:
        """Running requests need pages on `ranks`: the newest staging with pages there is given up, and none begins for
        a while. False if there is none."""
        staged = [
            (r.staging.started_step, r.id) for r in self._moving.values() if r.staging and _reserves(r, ranks)
        ]
        if not staged:
            return False
        _, newest = max(staged)
        self.cancel(self._moving[newest], "memory is short: running requests need the pages", step)
        self._wait_until, self._patience = step + self._patience, 2 * self._patience
        return True

    def strand_waiting(self, step: int) -> None:
        """Nothing has moved for long: those that found no room stay where they are."""
        free = [pool.available for pool in self._store.pools]
        reason = (
            f"no room to move for {self._config.transition_slack_steps} steps: free pages per rank {free}"
        )
        for record in [r for r in self._moving.values() if r.staging is None]:
            self._say_cancelled(record, record.goal.layout.name, reason, step)
            self._strand(record, reason, step)

    def _strand(self, record: Record, reason: str, step: int) -> None:
        """The request keeps its present place until memory comes free or a new target is set."""
        self.set_goal(record, record.present, reason, step)
        record.stranded = True
        self._stranded_free = self._store.num_free
        self._course.give_up()

    def _drop(self, record: Record) -> None:
        assert record.staging is not None
        self._ledger.cancel(record.staging.group)
        record.staging = None

    def _say_cancelled(self, record: Record, layout: str, reason: str, step: int) -> None:
        self._journal.emit(StageCancelled(self._journal.now(), step, record.id, layout, reason))


def _reserves(record: Record, ranks: Collection[int]) -> bool:
    """Whether the staging of a request has pages on one of `ranks`."""
    return record.staging is not None and any(grant.rank in ranks for grant in record.staging.grants)
