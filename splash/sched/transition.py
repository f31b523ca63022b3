"""The switch: requests reach the target one by one, in the background, and every state between is legal.

`Transitions` keeps three kinds of machine: a staging per moving request, a residency per rank, and the
open switch that they add up to. `boundary` is the fast part, at a batch boundary: table swaps only.
`background` is the rest, while the ranks compute. Nothing here knows bytes or clocks of a device.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from splash.core.config import SchedulerConfig
from splash.core.events import (
    CopyProgress,
    Event,
    RequestFlipped,
    ResidencyChanged,
    StageCancelled,
    StageStarted,
    TargetChanged,
    TargetRefused,
)
from splash.kv.blocks import KVStore
from splash.layout.layouts import Assignment, Layout, Placement, Projection, assigned, with_projection
from splash.layout.residency import full_ranks
from splash.sched.copies import CopyLedger
from splash.sched.draft import PlanDraft
from splash.sched.goals import balanced_homes, choose_goals, stripe_offset
from splash.sched.record import Record
from splash.sched.residency import Phase, RankResidency
from splash.sched.staging import begin_staging
from splash.sched.step import Flip, Resident, Stage
from splash.sched.switch import Switch
from splash.sched.target import Target

STAGED_STEPS = 8
"""Stagings begin while less than so many steps' worth of copies is queued: pages are held twice for less time."""
PATIENCE_STEPS = 16
"""Steps without a new staging after memory was short; doubled every time."""
RETRY_SHARE = 8
"""A target that was given up is tried again when 1/8 of all pages more are free."""


class Transitions:
    """All machinery of switching. `running` (id -> Record) is the scheduler's own table, shared by reference."""

    def __init__(
        self,
        *,
        store: KVStore,
        running: dict[int, Record],
        config: SchedulerConfig,
        token_bytes: int,
        target: Target,
        emit: Callable[[Event], None],
        now: Callable[[], float],
    ) -> None:
        self._store = store
        self._running = running
        self._config = config
        self._token_bytes = token_bytes
        self._emit = emit
        self._now = now
        self.target = target
        self.ledger = CopyLedger(store)
        self.residencies = [RankResidency(r, store, self.ledger) for r in range(store.topo.ranks)]
        self.switch: Switch | None = None
        self._moving: dict[int, Record] = {}
        """Records whose placement is not their goal's, staged or not, in order."""
        self._acks: list[int] = []
        """Of the last result: a request that they make ready flips at the boundary after the next."""
        self._flipped: list[tuple[Record, int]] = []
        self._cancelled: dict[int, Record] = {}
        """Records whose announced staging was given up: the executors must hear."""
        self._dropped: list[int] = []
        """Ranks whose replicas were given up since the last plan."""
        self._recheck = True
        """Projections may have to be toggled at the next boundary."""
        self._full_users: set[int] | None = None
        """Ranks that a request needs full, now or as its goal; None: to be counted."""
        self._words: list[list[str]] = []
        self._growth_refused = self._growth_hopeless = False
        self._stranded_free: int | None = None
        """Free pages when requests or replicas were given up; None if none are."""
        self._progress = (0, 0)
        """(acknowledged copies, step) when something last moved."""
        self._wait_until, self._patience = 0, PATIENCE_STEPS
        self._rested = False
        """The last look found nothing to do, and nothing that could change by itself."""

    # ---- what to aim for

    def retarget(
        self, target: Target, reason: str, waiting: Collection[Record], step: int, predicted: dict[str, float]
    ) -> bool:
        """Aim for `target`: new goals for all, unusable stagings cancelled. False, with an event, if it cannot fit."""
        records = list(self._running.values())
        goals, why_not = choose_goals(records, waiting, target, self._store)
        if why_not is not None:
            self._emit(TargetRefused(self._now(), step, target.name, why_not))
            return False
        self._close_switch(step, superseded=True)
        old, self.target = self.target, target
        self._emit(TargetChanged(self._now(), step, old.name, target.name, reason, predicted))
        self.switch = Switch(old.name, target.name, reason, step, self._now())
        self._growth_refused, self._growth_hopeless, self._stranded_free = False, False, None
        self._wait_until, self._patience = step, PATIENCE_STEPS
        self._moved(step)
        self._touch()
        for record in records:
            self.set_goal(record, goals[record.id], "a new target", step)
        return True

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
        self._touch()

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
        if self.target.striped_from is None:
            return []
        return [
            r
            for r in self._running.values()
            if r.goal.layout is self.target.layout and len(r.tokens) >= self.target.striped_from
        ]

    def admit_as(self, goal: Assignment) -> Assignment:
        """What a new request with this goal is at once: full only where the shards are resident."""
        self._full_users = None
        return assigned(self._projected(goal.layout, goal), goal.home)

    # ---- the batch boundary

    def boundary(self, draft: PlanDraft) -> int:
        """What has become ready takes effect, before the step's rows are chosen; returns how many requests flipped."""
        step = draft.index
        for residency in self.residencies:
            draft.moves += residency.finish_moves(step - 1)
            draft.state_moves += residency.move_states(self._running.values(), step)
            if residency.finish_fetch():
                self._touch()
                draft.residents.append(Resident(residency.rank, frozenset(range(self._store.topo.ranks))))
        flips = self._flip_ready(draft)
        if self._recheck:
            flips += self._toggle(draft)
            self._shrink(draft)
            self._recheck = False
        return flips

    def announce(self, draft: PlanDraft) -> None:
        """What begins or was given up, after the step's rows are chosen (which may have given up more)."""
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
        draft.residents += [Resident(rank, frozenset((rank,))) for rank in self._dropped]
        self._dropped = []
        for residency in self.residencies:
            draft.moves += residency.take_undone()
            draft.shadows += residency.new_shadows()
        draft.copies = self.ledger.take_outbox()

    # ---- while the ranks compute

    def background(self, step: int, budget: int, margin: int) -> None:
        """Retire, reserve, queue and choose copies for the next plan; `step` is the plan in flight."""
        acks, self._acks = self._acks, []
        self.ledger.acknowledge(acks)
        self._settle_flips()
        self._store.collect(step - 1)
        rested, self._rested = self._rested, self.at_rest
        if rested and self._rested:
            self.ledger.pass_idly(1)
            return
        self._check_bounds(step, budget)
        self._retry(step)
        self._grow(margin, step)
        for residency in self.residencies:
            residency.advance(self._running.values(), self._token_bytes, step, budget)
        if step >= self._wait_until:
            self._stage(step + 1, budget, margin)
        self.ledger.fill_outbox(budget)
        self._report(step)

    def collected(self, step: int, acks: Sequence[int]) -> None:
        """The result of `step` has arrived: what it acknowledges is settled in the background, and its pages are
        freed there, or when they are needed."""
        self._acks += acks
        for residency in self.residencies:
            residency.collected(step)

    @property
    def open(self) -> bool:
        """Something moves or waits to move."""
        return self.switch is not None or bool(self._moving) or not self.ledger.idle or not self._settled

    @property
    def at_rest(self) -> bool:
        """Nothing moves, and nothing will by itself: no projection to look at, nothing given up to be tried again."""
        return not self.open and not self._recheck and not self._flipped and self.complete

    def forget(self, record: Record, step: int) -> None:
        """The request leaves (finished, aborted, preempted): all its pages retire after `step`."""
        if record.staging is not None:
            self._drop_staging(record)
        self._full_users = None
        self._moving.pop(record.id, None)
        self._cancelled.pop(record.id, None)
        self._flipped = [entry for entry in self._flipped if entry[0] is not record]
        for residency in self.residencies:
            for evac in [e for e in residency.evacuations if e.record is record]:
                residency.drop_evacuation(evac, step)
        for block in record.blocks:
            for (_, rank), page in block.copies.items():
                self._store.retire(rank, page, step)
        self._store.retire_state(record.state, step)
        record.blocks, record.room, record.state = [], 0, []

    def relieve(self, step: int, ranks: Collection[int]) -> bool:
        """Memory is short on `ranks` after the collected `step`: give up replicas that are only kept warm, else the
        newest staging with pages there, else a residency that grows there. False if there is none of them."""
        if self.drop_warm_replicas(step):
            return True
        staged = [r for r in self._moving.values() if r.staging is not None and _reserves(r, ranks)]
        if staged:
            record = max(staged, key=lambda r: (r.staging.started_step if r.staging else 0, r.id))
            self.cancel(record, "memory is short: running requests need the pages", step)
            self._wait_until, self._patience = step + self._patience, 2 * self._patience
            return True
        growing = [
            x for x in self.residencies if x.rank in ranks and x.phase in (Phase.DRAINING, Phase.FETCHING)
        ]
        for residency in growing:
            residency.shrink(step)
        if growing:
            self._refuse_growth(step, "memory is short: running requests need the pages")
        return bool(growing)

    def drop_warm_replicas(self, step: int) -> bool:
        """Give the slots that no request and no goal needs to KV, all of whose readers are collected with `step`."""
        warm = [x for x in self.residencies if x.phase is Phase.FULL and not self._wanted_full(x.rank)]
        for residency in warm:
            residency.shrink(step)
            residency.collected(step)
            self._dropped.append(residency.rank)
        self._rested = self._rested and not warm
        return bool(warm)

    def cancel(self, record: Record, reason: str, step: int) -> None:
        """Give up a request's staging: it stays as it is, reserved pages retire after `step`."""
        assert record.staging is not None
        self._emit(StageCancelled(self._now(), step, record.id, str(record.staging.next.layout), reason))
        if record.staging.announced:
            self._cancelled[record.id] = record
        self._drop_staging(record)
        for index, block in enumerate(record.blocks):
            self._store.keep_only(block, index, record.present, step)
        self._drop_stray_evacuations(record, step)

    def extra_pages(self) -> list[tuple[int, int]]:
        """(rank, page) in use beside those of blocks, for the conservation check."""
        return [(x.rank, page) for x in self.residencies for page in x.pages()]

    # ---- parts of the boundary

    def _flip_ready(self, draft: PlanDraft) -> int:
        flips = 0
        for record in [r for r in self._moving.values() if r.staging is not None and r.staging.ready]:
            staging = record.staging
            assert staging is not None
            at = assigned(self._projected(record.goal.layout, staging.next), staging.next.home)
            self._flip(draft, record, at, draft.index - staging.started_step + 1, staging.group.num_bytes)
            record.staging = None
            record.next = None
            self._cancelled.pop(record.id, None)
            self._flipped.append((record, draft.index - 1))
            if record.placed:
                del self._moving[record.id]
            flips += 1
        return flips

    def _toggle(self, draft: PlanDraft) -> int:
        """Give every request the projection that its goal wants, as far as the shards are there."""
        flips = 0
        for record in self._running.values():
            wanted = self._projected(record.goal.layout, record.present)
            upward = wanted.projection is Projection.FULL
            if wanted is not record.present.layout and (record.placed or not upward):
                self._flip(draft, record, assigned(wanted, record.present.home), 0, 0)
                if record.next is not None:
                    draft.stages.append(Stage(record.id, record.next))
                flips += 1
        return flips

    def _flip(
        self, draft: PlanDraft, record: Record, at: Assignment, staged_steps: int, num_bytes: int
    ) -> None:
        old, record.present = record.present, at
        self._full_users = None
        draft.flips.append(Flip(record.id, at))
        self._emit(
            RequestFlipped(
                self._now(),
                draft.index,
                record.id,
                old.layout.name,
                at.layout.name,
                at.home,
                staged_steps,
                num_bytes,
            )
        )
        self._moved(draft.index)
        if self.switch is not None:
            self.switch.flipped.add(record.id)

    def _shrink(self, draft: PlanDraft) -> None:
        if self._config.replicas == "keep":
            return
        for residency in self.residencies:
            if residency.phase is not Phase.OWN and not self._wanted_full(residency.rank):
                if residency.phase is Phase.FULL:
                    draft.residents.append(Resident(residency.rank, frozenset((residency.rank,))))
                residency.shrink(draft.index - 1)

    # ---- parts of the background

    def _settle_flips(self) -> None:
        for record, last_step in self._flipped:
            for index, block in enumerate(record.blocks):
                self._store.keep_only(block, index, record.present, last_step)
            self._drop_stray_evacuations(record, last_step + 1)
        self._flipped = []

    def _check_bounds(self, step: int, budget: int) -> None:
        """Cancel what takes past twice its prediction and some steps; it stays as it is."""
        slack = self._config.transition_slack_steps
        for record in list(self._moving.values()):
            staging = record.staging
            if staging is None:
                continue
            staging.bound.offer(budget)
            if staging.bound.exceeded(step, slack=slack, budget=budget):
                group = staging.group
                moved = f"{group.done_bytes} of {group.num_bytes} bytes moved in {step - staging.started_step} steps"
                reason = f"{moved}, past twice its prediction + {slack}"
                self.cancel(record, reason, step)
                self._strand(record, reason, step)
        for residency in self.residencies:
            bound = residency.bound
            if bound is not None and bound.exceeded(step, slack=slack, budget=budget):
                took = (
                    f"{residency.phase.value} on rank {residency.rank} took {step - bound.started_step} steps"
                )
                residency.shrink(step)
                self._refuse_growth(step, f"{took}, past twice its prediction + {slack}", for_memory=False)

    def _retry(self, step: int) -> None:
        """Put requests that were given up back on the target, once memory has come free."""
        if self._stranded_free is None or self.switch is not None:
            return
        pages = sum(pool.geometry.num_pages for pool in self._store.pools)
        if self._free_pages() < self._stranded_free + pages // RETRY_SHARE:
            return
        self._stranded_free = None
        stranded = [r for r in self._running.values() if r.stranded]
        goals, why_not = choose_goals(list(self._running.values()), (), self.target, self._store)
        if why_not is None:
            for record in stranded:
                self.set_goal(record, goals[record.id], "memory has come free", step)

    def _grow(self, margin: int, step: int) -> None:
        """Start making ranks full that should be. After a refusal, only once the room is there (and a page for
        every running request, so that growing is not given up again at once)."""
        if self._growth_refused:
            spare = margin + len(self._running)
            if (
                self._growth_hopeless
                or self.target.layout.projection is Projection.SHARDED
                or any(x.shortage(spare) for x in self.residencies if x.phase is Phase.OWN)
            ):
                return
            self._growth_refused = False
            self._touch()
        for residency in self.residencies:
            if residency.phase is Phase.OWN and self._wanted_full(residency.rank):
                residency.grow(margin, step, self._token_bytes)

    def _stage(self, first_step: int, budget: int, margin: int) -> None:
        """Begin stagings in order, as long as the queue is short. One that lacks room keeps the ranks it lacks for
        itself; others go ahead where they need none of these."""
        lacking: set[int] = set()
        for record in self._moving.values():
            if self.ledger.busiest_bytes > STAGED_STEPS * budget or len(lacking) == self._store.topo.ranks:
                break
            if record.staging is None:
                lacking.update(self._begin(record, first_step, lacking, margin))

    def _begin(self, record: Record, first_step: int, avoid: Collection[int], margin: int) -> list[int]:
        next_layout = with_projection(record.goal.layout, Projection.SHARDED)
        lacking = begin_staging(
            record,
            assigned(next_layout, record.goal.home),
            store=self._store,
            ledger=self.ledger,
            token_bytes=self._token_bytes,
            margin=margin,
            step=first_step,
            avoid=avoid,
        )
        staging = record.staging
        if staging is not None:
            self._moved(first_step)
            self._emit(
                StageStarted(
                    self._now(),
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

    def _report(self, step: int) -> None:
        traffic = self.ledger.take_traffic()
        kv, weights = sum(map(sum, traffic.kv)), sum(map(sum, traffic.weights))
        if kv or weights or traffic.evacuated_pages:
            self._emit(
                CopyProgress(
                    self._now(),
                    step,
                    traffic.kv,
                    traffic.weights,
                    traffic.evacuated_pages,
                    self.ledger.pages_left,
                    self.ledger.weight_bytes_left,
                )
            )
        words = [r.words() for r in self.residencies]
        for rank, slots in enumerate(words):
            if not self._words or self._words[rank] != slots:
                self._emit(ResidencyChanged(self._now(), step, rank, slots))
        if words != self._words or self.ledger.num_acknowledged > self._progress[0]:
            self._moved(step)
        self._words = words
        if self.switch is not None:
            self.switch.kv_bytes += kv
            self.switch.weight_bytes += weights
        if self._recheck:
            return
        if not self._moving and self._settled:
            if self.switch is not None and self._reached():
                self._close_switch(step, superseded=False)
        elif step - self._progress[1] > self._config.transition_slack_steps and step >= self._wait_until:
            self._give_up(step)

    def _reached(self) -> bool:
        """Every request has the projection that its goal wants, as far as the shards are there."""
        return all(
            r.present.layout is self._projected(r.goal.layout, r.present) for r in self._running.values()
        )

    @property
    def _settled(self) -> bool:
        """Residencies are what they should be, or growing was refused."""
        return all(
            x.settled and (self._growth_refused or (x.phase is Phase.FULL) >= self._wanted_full(x.rank))
            for x in self.residencies
        )

    def _give_up(self, step: int) -> None:
        """Nothing has moved for long: memory does not come free. Requests stay where they are."""
        waiting = [r for r in self._moving.values() if r.staging is None]
        free = [pool.available for pool in self._store.pools]
        for record in waiting:
            reason = (
                f"no room to move for {self._config.transition_slack_steps} steps: free pages per rank {free}"
            )
            self._emit(StageCancelled(self._now(), step, record.id, record.goal.layout.name, reason))
            self._strand(record, reason, step)
        short = max((x.shortage(self._config.watermark_pages) for x in self.residencies), default=0)
        if any(x.phase is Phase.OWN and self._wanted_full(x.rank) for x in self.residencies):
            self._refuse_growth(step, f"replicas need {short} more free pages on a rank; free are {free}")
        self._moved(step)

    def _strand(self, record: Record, reason: str, step: int) -> None:
        """The request keeps its present place until memory comes free or a new target is set."""
        self.set_goal(record, record.present, reason, step)
        record.stranded = True
        self._stranded_free = self._free_pages()
        if self.switch is not None:
            self.switch.given_up = True

    def _refuse_growth(self, step: int, reason: str, *, for_memory: bool = True) -> None:
        """Ranks are not made full: until memory comes free, or for good if copying takes too long."""
        self._growth_refused, self._growth_hopeless = True, not for_memory
        self._full_users = None
        if self.switch is not None:
            self.switch.given_up = True
        self._emit(TargetRefused(self._now(), step, self.target.name, reason))

    def _close_switch(self, step: int, *, superseded: bool) -> None:
        if self.switch is not None:
            self._emit(self.switch.closed(superseded=superseded, step=step, now=self._now()))
            self.switch = None

    # ---- small questions

    def _projected(self, wanted: Layout, at: Assignment) -> Layout:
        """The layout at `at`'s place with the projection of `wanted`, if the shards it needs are resident."""
        if wanted.projection is Projection.FULL:
            full = assigned(with_projection(at.layout, Projection.FULL), at.home) if at.has_home else None
            if full is not None and all(
                self.residencies[r].phase is Phase.FULL for r in full_ranks(full, self._store.topo.ranks)
            ):
                return full.layout
        return with_projection(at.layout, Projection.SHARDED)

    def _wanted_full(self, rank: int) -> bool:
        if self.target.layout.projection is Projection.FULL and not self._growth_refused:
            return True
        if self._full_users is None:
            ranks = self._store.topo.ranks
            places = [r.present for r in self._running.values()]
            if not self._growth_refused:
                places += [r.goal for r in self._running.values()]
            self._full_users = {rank for at in set(places) for rank in full_ranks(at, ranks)}
        return rank in self._full_users

    def _moved(self, step: int) -> None:
        """Something got ahead in `step`."""
        self._progress = self.ledger.num_acknowledged, step

    def _free_pages(self) -> int:
        return sum(pool.available for pool in self._store.pools)

    @property
    def complete(self) -> bool:
        """Whether nothing that the target asked for was given up."""
        return not self._growth_refused and self._stranded_free is None

    @property
    def growing(self) -> bool:
        """Ranks are to be made full and are not yet: admissions leave the slots' room free."""
        return any(x.phase is not Phase.FULL and self._wanted_full(x.rank) for x in self.residencies)

    def _touch(self) -> None:
        """Goals, projections or residencies changed: look again at the next boundary."""
        self._recheck = True
        self._full_users = None

    def _drop_staging(self, record: Record) -> None:
        assert record.staging is not None
        self.ledger.cancel(record.staging.group)
        record.staging = None

    def _drop_stray_evacuations(self, record: Record, step: int) -> None:
        for residency in self.residencies:
            for evac in [e for e in residency.evacuations if e.record is record]:
                if record.blocks[evac.index].copies.get((evac.kv_group, residency.rank)) != evac.old_page:
                    residency.drop_evacuation(evac, step)


def _reserves(record: Record, ranks: Collection[int]) -> bool:
    """Whether the staging of a request has pages on one of `ranks`."""
    return record.staging is not None and any(grant.rank in ranks for grant in record.staging.grants)
