"""Which ranks hold all weight shards, which shall, and what that lets requests compute."""

from __future__ import annotations

from collections.abc import Collection

from splash.core.events import ResidencyChanged, TargetRefused
from splash.layout.layouts import Assignment, Layout, Projection, assigned, with_projection
from splash.layout.residency import full_ranks
from splash.sched.copies import CopyLedger
from splash.sched.draft import PlanDraft
from splash.sched.record import Record
from splash.sched.residency import Phase, RankResidency
from splash.sched.shared import Shared
from splash.sched.step import Resident
from splash.sched.switch import Course


class Replicas:
    """A residency per rank, grown and shrunk as the requests' places and goals want it. Growing may be refused, and
    then everybody keeps sharded projections: that serves too."""

    def __init__(self, shared: Shared, *, ledger: CopyLedger, course: Course) -> None:
        self._store = store = shared.store
        self._running = shared.running
        self._course = course
        self._config = shared.config
        self._token_bytes = shared.token_bytes
        self._progress = shared.progress
        self._journal = shared.journal
        self._residencies = [RankResidency(r, store, ledger) for r in range(store.topo.ranks)]
        self.recheck = True
        """Projections may have to be toggled at the next boundary."""
        self.surplus = False
        """Ranks may be full that nobody needs any more: the next boundary gives their slots back."""
        self._users: set[int] | None = None
        """Ranks that a request needs full, now or as its goal; None: to be counted."""
        self._dropped: list[int] = []
        """Ranks whose replicas were given up since the last plan."""
        self._words: list[list[str]] = []
        self.refused = False
        """Growing was given up."""
        self._hopeless = False
        """It is not tried again under this target."""

    # ---- questions

    def projected(self, wanted: Layout, at: Assignment) -> Layout:
        """The layout at `at`'s place with the projection of `wanted`, if the shards it needs are resident."""
        if wanted.projection is Projection.FULL and at.has_home:
            full = assigned(with_projection(at.layout, Projection.FULL), at.home)
            if all(
                self._residencies[r].phase is Phase.FULL for r in full_ranks(full, self._store.topo.ranks)
            ):
                return full.layout
        return with_projection(at.layout, Projection.SHARDED)

    @property
    def growing(self) -> bool:
        """Ranks are to be made full and are not yet."""
        wanted = self._wanted()
        return any(x.phase is not Phase.FULL and x.rank in wanted for x in self._residencies)

    @property
    def settled(self) -> bool:
        """Residencies are what they should be, or growing was refused."""
        if self.surplus:
            return False
        missed = () if self.refused else self._wanted()
        return all(x.settled and (x.phase is Phase.FULL or x.rank not in missed) for x in self._residencies)

    def pages(self) -> list[tuple[int, int]]:
        """(rank, page) in use beside those of blocks."""
        return [(x.rank, page) for x in self._residencies for page in x.pages()]

    @property
    def _targeted(self) -> bool:
        """The target wants all ranks full."""
        return self._course.target.layout.projection is Projection.FULL and not self.refused

    def _wanted(self) -> Collection[int]:
        """The ranks that shall be full: for the target, or for a request's place or goal."""
        if self._targeted:
            return range(self._store.topo.ranks)
        if self._users is None:
            ranks = self._store.topo.ranks
            places = [r.present for r in self._running.values()]
            if not self.refused:
                places += [r.goal for r in self._running.values()]
            full = {at for at in places if at.layout.projection is Projection.FULL}
            self._users = {rank for at in full for rank in full_ranks(at, ranks)}
        return self._users

    # ---- news

    def recount(self) -> None:
        """Places or goals changed: who needs full ranks is to be counted anew."""
        self._users = None

    def left(self, *places: Assignment) -> None:
        """A request is not, or shall not be, at these places any more: if ranks were full for it, the next boundary
        sees whether they are still needed."""
        self._users = None
        if not self.surplus and not self._targeted and self._config.replicas == "drop":
            self.surplus = any(at.layout.projection is Projection.FULL for at in places)

    def touch(self) -> None:
        """Goals, projections or residencies changed: look again at the next boundary."""
        self.recheck = True
        self.recount()

    def retry(self) -> None:
        """A new target: growing is not refused any more."""
        self.refused = self._hopeless = False
        self.touch()

    def collected(self, step: int) -> None:
        """The result of `step` has arrived."""
        for residency in self._residencies:
            residency.collected(step)

    def forget(self, record: Record, step: int) -> None:
        """The request leaves: its pages are moved no more."""
        for residency in self._residencies:
            for evacuation in residency.evacuations_of(record):
                residency.drop_evacuation(evacuation, step)

    def drop_strays(self, record: Record, step: int) -> None:
        """The request has given up pages: those are moved no more."""
        for residency in self._residencies:
            for evacuation in residency.evacuations_of(record):
                if (
                    record.blocks[evacuation.index].copies.get((evacuation.kv_group, residency.rank))
                    != evacuation.old_page
                ):
                    residency.drop_evacuation(evacuation, step)

    # ---- the batch boundary

    def finish(self, draft: PlanDraft) -> None:
        """Evacuated pages take over, and fetched shards become resident."""
        for residency in self._residencies:
            draft.moves += residency.finish_moves(draft.step - 1)
            draft.state_moves += residency.move_states(self._running.values(), draft.step)
            if residency.finish_fetch():
                self.touch()
                draft.residents.append(Resident(residency.rank, frozenset(range(self._store.topo.ranks))))

    def shrink(self, draft: PlanDraft) -> None:
        """Projections are toggled: give back the slots that nobody needs any more, unless they are kept warm. With
        the last step that read them collected, they can be used at once."""
        changed = self.recheck or self.surplus
        self.recheck = self.surplus = False
        if not changed or self._config.replicas == "keep":
            return
        for residency in self._residencies:
            if residency.phase is not Phase.OWN and residency.rank not in self._wanted():
                if residency.phase is Phase.FULL:
                    draft.residents.append(Resident(residency.rank, frozenset((residency.rank,))))
                residency.shrink(draft.step - 1)
                residency.collected(self._progress.collected)

    def announce(self, draft: PlanDraft) -> None:
        """What was given up, and what is written twice from now on."""
        draft.residents += [Resident(rank, frozenset((rank,))) for rank in self._dropped]
        self._dropped = []
        for residency in self._residencies:
            draft.moves += residency.take_undone()
            draft.shadows += residency.new_shadows()

    # ---- while the ranks compute

    def check_bounds(self, step: int, budget: int) -> None:
        """Give up growing where it takes past twice its prediction and some steps."""
        slack = self._config.transition_slack_steps
        for residency in self._residencies:
            bound = residency.bound
            if bound is not None and bound.exceeded(step, slack=slack, budget=budget):
                undone = f"{residency.phase.value} on rank {residency.rank} was not done"
                reason = bound.said(undone, step, slack=slack)
                residency.shrink(step)
                self._refuse(step, reason, for_memory=False)

    def grow(self, margin: int, step: int) -> None:
        """Start making ranks full that should be. After a refusal, only once the room is there (and a page for
        every running request, so that growing is not given up again at once)."""
        if self.refused:
            spare = margin + len(self._running)
            if (
                self._hopeless
                or self._course.target.layout.projection is Projection.SHARDED
                or any(x.shortage(spare) for x in self._residencies if x.phase is Phase.OWN)
            ):
                return
            self.refused = False
            self.touch()
        for residency in self._residencies:
            if residency.phase is Phase.OWN and residency.rank in self._wanted():
                residency.grow(margin, step, self._token_bytes)

    def advance(self, step: int, budget: int) -> None:
        """One step of draining and fetching."""
        for residency in self._residencies:
            residency.advance(self._running.values(), self._token_bytes, step, budget)

    def report(self, step: int) -> bool:
        """Tell which slots have changed; returns whether any has."""
        words = [r.words() for r in self._residencies]
        for rank, slots in enumerate(words):
            if not self._words or self._words[rank] != slots:
                self._journal.emit(ResidencyChanged(self._journal.now(), step, rank, slots))
        changed = words != self._words
        self._words = words
        return changed

    # ---- giving up

    def drop_warm(self, step: int) -> bool:
        """Give the slots that no request and no goal needs to KV, once `step`, the last that may read them, is
        collected."""
        wanted = self._wanted()
        warm = [x for x in self._residencies if x.phase is Phase.FULL and x.rank not in wanted]
        for residency in warm:
            residency.shrink(step)
            residency.collected(self._progress.collected)
            self._dropped.append(residency.rank)
        return bool(warm)

    def yield_room(self, step: int, ranks: Collection[int]) -> bool:
        """Running requests need pages on `ranks`: stop growing there. False if nothing grows there."""
        growing = [
            x for x in self._residencies if x.rank in ranks and x.phase in (Phase.DRAINING, Phase.FETCHING)
        ]
        for residency in growing:
            residency.shrink(step)
        if growing:
            self._refuse(step, "memory is short: running requests need the pages")
        return bool(growing)

    def refuse_stuck(self, step: int) -> None:
        """Nothing has moved for long: ranks that wait for room stay as they are."""
        short = max((x.shortage(self._config.watermark_pages) for x in self._residencies), default=0)
        wanted = self._wanted()
        if any(x.phase is Phase.OWN and x.rank in wanted for x in self._residencies):
            free = [pool.available for pool in self._store.pools]
            self._refuse(step, f"replicas need {short} more free pages on a rank; free are {free}")

    def _refuse(self, step: int, reason: str, *, for_memory: bool = True) -> None:
        """Ranks are not made full: until memory comes free, or for good if copying takes too long."""
        self.refused, self._hopeless = True, not for_memory
        self.recount()
        wanted = self._wanted()
        self.surplus = self._config.replicas == "drop" and any(
            x.phase is Phase.FULL and x.rank not in wanted for x in self._residencies
        )
        self._course.give_up()
        self._journal.emit(TargetRefused(self._journal.now(), step, self._course.target.name, reason))


class Projections(dict[tuple[Layout, Assignment], Layout]):
    """`Replicas.projected` at one moment: worked out once for requests that are alike."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas

    def __missing__(self, key: tuple[Layout, Assignment]) -> Layout:
        found = self[key] = self._replicas.projected(*key)
        return found
