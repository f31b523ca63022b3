"""The switch: requests reach the target one by one, in the background, and every state between is legal.

`Transitions` brings together what is on its way: requests (`Moves`), weights (`Replicas`), and the target with the
switch that they add up to (`Course`). `boundary` is the fast part, at a batch boundary: table swaps only.
`background` is the rest, while the ranks compute. Nothing here knows bytes or clocks of a device.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from splash.core.events import CopyProgress, TargetRefused
from splash.layout.layouts import Assignment, Placement, assigned
from splash.sched.copies import CopyLedger
from splash.sched.draft import PlanDraft
from splash.sched.goals import balanced_homes, choose_goals, stripe_offset
from splash.sched.moves import Moves
from splash.sched.record import Record
from splash.sched.replicas import Replicas
from splash.sched.shared import Shared
from splash.sched.switch import Course
from splash.sched.target import Target


class Transitions:
    """All machinery of switching."""

    def __init__(self, shared: Shared, target: Target) -> None:
        self._store = shared.store
        self._running = shared.running
        self._config = shared.config
        self._progress = shared.progress
        self._journal = shared.journal
        self.ledger = CopyLedger(shared.store)
        self._course = Course(target, ledger=self.ledger, journal=shared.journal)
        self._replicas = Replicas(shared, ledger=self.ledger, course=self._course)
        self._moves = Moves(shared, ledger=self.ledger, replicas=self._replicas, course=self._course)
        self._acks: list[int] = []
        """Of the results since the last background, which the next one settles."""
        self._copied_s = 0.0
        """What the copies of `_acks` took."""
        self._rested = False
        """The background found nothing to do and nothing that could change by itself, and nothing has happened since:
        boundaries have nothing to look at."""

    # ---- questions

    @property
    def target(self) -> Target:
        return self._course.target

    @property
    def open(self) -> bool:
        """Something moves or waits to move."""
        return not self._rested and (
            self._course.switch is not None
            or self._moves.open
            or not self.ledger.idle
            or not self._replicas.settled
        )

    @property
    def at_rest(self) -> bool:
        """Nothing moves, and nothing will by itself: no projection to look at, nothing given up to be tried again."""
        return not self.open and not self._replicas.recheck and not self._moves.unsettled and self.complete

    @property
    def rested(self) -> bool:
        """It was at rest at the last look: if it still is, another one is in vain."""
        return self._rested

    @property
    def complete(self) -> bool:
        """Whether nothing that the target asked for was given up."""
        return not self._replicas.refused and not self._moves.stranded

    @property
    def growing(self) -> bool:
        """Ranks are to be made full and are not yet: admissions leave the slots' room free."""
        return self._replicas.growing

    def extra_pages(self) -> list[tuple[int, int]]:
        """(rank, page) in use beside those of blocks, for the conservation check."""
        return self._replicas.pages()

    # ---- what to aim for

    def retarget(
        self, target: Target, reason: str, waiting: Collection[Record], step: int, predicted: dict[str, float]
    ) -> bool:
        """Aim for `target`: new goals for all, unusable stagings cancelled. False, with an event, if it cannot fit."""
        self._rested = False
        records = list(self._running.values())
        goals, why_not = choose_goals(records, waiting, target, self._store)
        if why_not is not None:
            self._journal.emit(TargetRefused(self._journal.now(), step, target.name, why_not))
            return False
        self._moves.settle_flips()  # they belong to the switch that ends here
        self._course.turn(target, reason, predicted, step)
        self._replicas.retry()
        self._moves.retry(step)
        for record in records:
            self._moves.set_goal(record, goals[record.id], "a new target", step)
        return True

    def set_goal(self, record: Record, goal: Assignment, reason: str, step: int) -> None:
        """Where one running request shall go; a staging that does not lead there is cancelled."""
        self._rested = False
        self._moves.set_goal(record, goal, reason, step)

    def rebalance(self, step: int) -> int:
        """Move requests of owner layouts so that owners hold equal shares, and stripe those that have become long;
        returns how many will move."""
        grown = self._outgrown()
        for record in grown:
            goal = assigned(self.target.layout_of(len(record.tokens)), stripe_offset(record, self._store))
            self.set_goal(record, goal, "it has become long", step)
        owned = [r for r in self._running.values() if r.goal.layout.placement is Placement.OWNER]
        moves = balanced_homes(owned, self._store)
        for record_id, home in moves.items():
            record = self._running[record_id]
            self.set_goal(record, assigned(record.goal.layout, home), "rebalancing", step)
        return len(grown) + len(moves)

    def _outgrown(self) -> list[Record]:
        """Requests in the target's layout that are too long for it by now."""
        target = self.target
        if target.striped_from is None:
            return []
        return [
            r
            for r in self._running.values()
            if r.goal.layout is target.layout and len(r.tokens) >= target.striped_from
        ]

    def admit_as(self, goal: Assignment) -> Assignment:
        """What a new request with this goal is at once: full only where the shards are resident."""
        self._rested = False
        self._replicas.recount()
        return assigned(self._replicas.projected(goal.layout, goal), goal.home)

    # ---- the batch boundary

    def boundary(self, draft: PlanDraft) -> int:
        """What has become ready takes effect, before the step's rows are chosen; returns how many requests flipped."""
        if self._rested:
            return 0
        self._replicas.finish(draft)
        flips = self._moves.flip_ready(draft)
        if self._replicas.recheck:
            flips += self._moves.toggle(draft)
        self._replicas.shrink(draft)
        return flips

    def announce(self, draft: PlanDraft) -> None:
        """What begins or was given up, after the step's rows are chosen (which may have given up more)."""
        if self._rested:
            return
        self._moves.announce(draft)
        self._replicas.announce(draft)
        draft.copies = self.ledger.take_outbox()

    # ---- while the ranks compute

    def collected(self, step: int, acks: Sequence[int], copied_s: float) -> None:
        """The result of `step` has arrived: what it acknowledges is settled in the background, and its pages are
        freed there, or when they are needed."""
        self._acks += acks
        self._copied_s += copied_s
        self._replicas.collected(step)

    def note_boundary(self, step: int, seconds: float) -> None:
        """The time between `step` and the one before, which a switch must not lengthen."""
        self._course.note_boundary(step, seconds)

    def settle_copies(self) -> tuple[int, float]:
        """What results have acknowledged has arrived: bytes on the rank to which most came, and the seconds it took."""
        acks, copied_s = self._acks, self._copied_s
        self._acks, self._copied_s = [], 0.0
        return self.ledger.acknowledge(acks), copied_s

    def background(self, step: int, budget: int, margin: int) -> None:
        """Retire, reserve, queue and choose copies for the next plan; `step` is the plan just made."""
        self._moves.settle_flips()
        self._store.collect(self._progress.collected)
        rested, self._rested = self._rested, False
        self._rested = self.at_rest
        if rested and self._rested:
            self.ledger.pass_idly(1)
            return
        self._moves.check_bounds(step, budget)
        self._replicas.check_bounds(step, budget)
        self._moves.retry_stranded(step)
        self._replicas.grow(margin, step)
        self._replicas.advance(step, budget)
        if not self._moves.waits(step):
            self._moves.stage(step + 1, budget, margin)
        self.ledger.fill_outbox(budget, in_flight=self._progress.in_flight)
        self._report(step)
        self._conclude(step)

    def _report(self, step: int) -> None:
        """Tell what arrived and what changed."""
        traffic = self.ledger.take_traffic()
        if traffic is not None:
            self._course.arrived(sum(map(sum, traffic.kv)), sum(map(sum, traffic.weights)))
            self._journal.emit(
                CopyProgress(
                    self._journal.now(),
                    step,
                    traffic.kv,
                    traffic.weights,
                    traffic.evacuated_pages,
                    self.ledger.pages_left,
                    self.ledger.weight_bytes_left,
                )
            )
        if self._replicas.report(step) or self._course.copying:
            self._course.advance(step)

    def _conclude(self, step: int) -> None:
        """Close the switch when all is there and the boundary of the last flips has been counted; give up what has
        found no room for long."""
        if self._replicas.recheck or self._course.flips_since(self._progress.collected):
            return
        if not self._moves.open and self._replicas.settled:
            if self._course.switch is not None and self._moves.reached():
                self._course.close(step)
        elif self._course.idle_steps(step) > self._config.transition_slack_steps and not self._moves.waits(
            step
        ):
            self._moves.strand_waiting(step)
            self._replicas.refuse_stuck(step)
            self._course.advance(step)

    # ---- giving up

    def forget(self, record: Record, step: int) -> None:
        """The request leaves (finished, aborted, preempted): all its pages retire after `step`."""
        self._moves.forget(record)
        self._replicas.left(record.present, record.goal)
        self._rested = self._rested and not self._replicas.surplus
        self._replicas.forget(record, step)
        self._store.retire_blocks(record.blocks, step)
        self._store.retire_state(record.state, step)
        record.blocks, record.room, record.state = [], 0, []

    def relieve(self, step: int, ranks: Collection[int]) -> bool:
        """Memory is short on `ranks` after the collected `step`: retire what the flips at this boundary have left, else
        give up replicas that are only kept warm, else the newest staging with pages there, else a residency that grows
        there. False if there is none of them."""
        return (
            self._moves.settle_flips()
            or self.drop_warm_replicas(step)
            or self._moves.yield_room(step, ranks)
            or self._replicas.yield_room(step, ranks)
        )

    def drop_warm_replicas(self, step: int) -> bool:
        """Give the slots that no request and no goal needs to KV, all of whose readers are collected with `step`."""
        dropped = self._replicas.drop_warm(step)
        self._rested = self._rested and not dropped
        return dropped
