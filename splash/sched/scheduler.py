"""The scheduler: one plan per step from requests, memory and the state of the switch.

`schedule` makes a plan and is kept short; `prepare` is everything that may happen once it is handed out; `update` takes
the oldest result. Who drives it may plan ahead of results; a plan says "the token sampled before", so it need not know
it. Torch-free and without a clock of its own, so that the simulator runs it too.
"""

from __future__ import annotations

from collections import deque

from splash.core.config import SchedulerConfig
from splash.core.errors import CapacityError, ConfigError, RequestError
from splash.core.events import EventSink
from splash.core.request import Request, check_prompt
from splash.kv.blocks import KVStore
from splash.kv.slots import MemoryPlan
from splash.layout.holders import Topology
from splash.layout.layouts import assigned, layout_named
from splash.sched.batch import RowBytes
from splash.sched.draft import PlanDraft
from splash.sched.flight import Flight
from splash.sched.goals import longest_held
from splash.sched.journal import Journal
from splash.sched.parts import make_parts
from splash.sched.policy import Policy
from splash.sched.progress import Progress
from splash.sched.record import Record
from splash.sched.results import Output
from splash.sched.shared import Shared
from splash.sched.steady import REBALANCE_PERIOD, Steady
from splash.sched.step import Clock, StepPlan, StepResult
from splash.sched.target import target_named


class Scheduler:
    """Brings its parts together, a noun each; owns the plans in flight and nothing of a device."""

    def __init__(
        self,
        *,
        memory: MemoryPlan,
        topo: Topology,
        config: SchedulerConfig,
        rows: RowBytes,
        target: str,
        policy: Policy | None,
        clock: Clock,
        emit: EventSink,
        eos: tuple[int, ...] = (),
        seed: int = 0,
        prefer_slots: bool = False,
    ) -> None:
        """`target` is a layout's name; `policy` None keeps it until `set_target`. `emit` is called from
        `prepare` and `drain_events` only. `prefer_slots` hands out slot pages first (tests of evacuation)."""
        self._config = config
        self._eos = frozenset(eos)
        self._seed = seed
        self.store = store = KVStore(
            memory.geometry,
            topo,
            memory.pages.block_size,
            state_pages=memory.state_pages,
            prefer_slots=prefer_slots,
        )
        self._progress = progress = Progress()
        self._journal = journal = Journal(clock, emit)
        self.running: dict[int, Record] = {}
        """By id, in order of admission."""
        shared = Shared(store, self.running, config, memory.pages.token_bytes, progress, journal)
        self._parts = parts = make_parts(shared, target=target_named(target), policy=policy, row_bytes=rows)
        self.waiting = parts.roster.waiting
        self.transitions = parts.transitions
        self.admission = parts.admission
        self.pace = parts.pace
        self.steady = Steady(parts)
        self._flights: deque[Flight] = deque()

    # ---- requests

    def check_request(self, num_prompt: int, max_tokens: int) -> None:
        """RequestError unless such a request can be served under the present target."""
        limit = self._config.max_model_len
        if num_prompt < 1:
            raise RequestError("the prompt is empty; it must hold at least one token")
        check_prompt(num_prompt, limit)
        length = min(num_prompt + max_tokens, limit) - 1  # the last token is sampled, not cached
        layout = self.transitions.target.layout_of(length)
        holds = longest_held(layout, self.store)
        if length > holds:
            less = "lower max_tokens or " if num_prompt <= holds else ""
            raise RequestError(
                f"the request may cache {length} tokens ({num_prompt} prompt, {max_tokens} max_tokens) and the pool"
                f" holds at most {holds} tokens of one request under {layout}",
                remedy=f"{less}raise --kv-pages or --pool-mib",
            )

    def add(self, request: Request, forced: tuple[int, ...] = ()) -> None:
        """Queue a request that `check_request` accepts (RequestError otherwise; nothing is lost)."""
        self.check_request(len(request.prompt), request.params.max_tokens)
        if request.id in self._parts.roster.known:
            raise RequestError(f"request id {request.id} is in use")
        params = request.params
        stops = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self._eos)
        record = Record(
            request,
            goal=assigned(self.transitions.target.layout, 0),
            seed=params.seed if params.seed is not None else _derived_seed(self._seed, request.id),
            stops=stops,
            max_model_len=self._config.max_model_len,
            forced=forced,
        )
        self._parts.roster.arrive(record)
        self._parts.aim.note_prompt(record.num_prompt)

    def abort(self, request_id: int) -> Output | None:
        """End a request wherever it is; None if it is unknown or has ended."""
        record = self._parts.roster.known.get(request_id)
        return None if record is None else self._parts.results.finish(record, (), "abort")

    def has_work(self) -> bool:
        """Requests, messages to the executors, or open transitions."""
        return self._parts.roster.busy or self.switching

    # ---- the switch

    def set_target(
        self, layout_name: str, reason: str, *, striped_from: int | None = None, keep_policy: bool = False
    ) -> None:
        """Aim for a layout from the next step's background on (ConfigError if there is none of that name), and stay
        there: the policy is not asked any more, unless it is kept. TargetRefused is emitted, and nothing changes, if
        it cannot fit."""
        self._parts.aim.want(layout_name, reason, striped_from=striped_from, keep_policy=keep_policy)

    def set_goal(self, request_id: int, layout_name: str, home: int) -> None:
        """Move one running request on its own, e.g. to another owner or into a layout of its own. RequestError if it is
        not running; ConfigError if there is no such layout or home; CapacityError, with numbers, if that place cannot
        hold what it may grow to."""
        layout, ranks = layout_named(layout_name), self.store.topo.ranks
        record = self.running.get(request_id)
        if record is None:
            raise RequestError(
                f"request {request_id} is not running: it cannot be moved to {layout_name}@{home}"
            )
        if not 0 <= home < ranks:
            raise ConfigError(f"request {request_id}: home {home} is no rank; the ranks are 0 to {ranks - 1}")
        holds = longest_held(layout, self.store)
        if record.limit - 1 > holds:
            raise CapacityError(
                f"request {request_id} may cache {record.limit - 1} tokens; under {layout_name} one request has {holds}"
            )
        self.transitions.set_goal(record, assigned(layout, home), "a goal of its own", self._progress.planned)

    def rebalance(self) -> int:
        """Even out the owners' shares; returns how many requests will move."""
        return self.transitions.rebalance(self._progress.planned)

    @property
    def target(self) -> str:
        return self.transitions.target.name

    @property
    def switching(self) -> bool:
        """A target is asked for, or a transition is open."""
        return self._parts.aim.switching

    # ---- a step

    @property
    def next_step(self) -> int:
        """The index of the step that is planned next."""
        return self._progress.planned + 1

    @property
    def in_flight(self) -> int:
        """Plans whose results are not in."""
        return self._progress.in_flight

    def schedule(self) -> StepPlan | None:
        """The next step's plan, a tick without rows while a transition is open, or None if there is nothing to do: at
        all, or before the results in flight are in. `prepare` comes next, before any other call."""
        parts = self._parts
        if self._flights:
            if not self._may_go_ahead():
                return None
        elif not self.has_work():
            self.rest()
            return None
        elif not self.running:
            parts.aim.ask_at_once(self.next_step)
            parts.aim.take_up(self.next_step)
        draft = PlanDraft(self.next_step)
        num_flips = parts.transitions.boundary(draft)
        if num_flips:
            parts.decodes.disturb()
        parts.growth.grow_decodes(draft)
        parts.admission.admit(draft)
        parts.rows.take(draft)
        parts.transitions.announce(draft)
        draft.gone = parts.roster.take_gone()
        if draft.empty and not self.transitions.open:
            if not self._flights:
                self.rest()
            return None
        self._progress.planned += 1
        plan = draft.freeze()
        self._flights.append(Flight(plan, draft.sampling, num_flips))
        return plan

    def _may_go_ahead(self) -> bool:
        """The next step may be planned before the results in flight are in: requests run, a step of theirs was planned
        last, and there are pages for the next."""
        return bool(self.running and self._flights[-1].plan.num_rows and not self._parts.growth.short())

    def prepare(self) -> None:
        """Background work of the plan just made: retire, reserve, choose copies, ask the policy, emit events."""
        flight = self._flights[-1]
        plan = flight.plan
        flight.by_place = self._parts.rows.by_place()
        self._parts.aim.ask_when_due(plan.step, sum(chunk.count for chunk in plan.chunks))
        self._parts.aim.take_up(plan.step)
        if self._config.rebalance and plan.step % REBALANCE_PERIOD == 0 and not self.switching:
            self.rebalance()
        margin = self._config.watermark_pages if self.running else 0
        self.pace.note_copies(*self.transitions.settle_copies())
        budget = self.pace.copy_budget(idle=not plan.num_rows)
        self.transitions.background(plan.step, budget, margin)
        self._parts.samples.take_when_due()
        self.drain_events()

    def update(self, result: StepResult) -> list[Output]:
        """Take the result of the oldest step in flight: tokens, finished requests, acknowledged copies."""
        assert self._flights, "a result without a plan"
        flight = self._flights.popleft()
        assert result.step == flight.plan.step, "results come in order, one a plan"
        self._progress.collected = result.step
        self.transitions.collected(result.step, result.acks, result.copied_s)
        outputs = self._parts.results.take(flight, result)
        if self._config.check_invariants:
            self.check()
        return outputs

    def rest(self) -> None:
        """No step follows the last one at once: it is told what is held then."""
        self.pace.rest()
        self._parts.samples.take_at_rest()

    def drain_events(self) -> None:
        """Hand all queued events to the sink."""
        self._journal.drain()

    def check(self) -> None:
        """AssertionError unless every page has exactly one use (debug)."""
        records = self._parts.roster.known.values()
        blocks = [block for record in records for block in record.blocks]
        self.store.check(blocks, self.transitions.extra_pages(), [record.state for record in records])


def _derived_seed(seed: int, request_id: int) -> int:
    """A seed of its own for every request, the same in every run: one round of splitmix64."""
    x = (seed * 0x9E3779B97F4A7C15 + request_id + 1) * 0xBF58476D1CE4E5B9 & (2**64 - 1)
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & (2**64 - 1)
    return (x ^ (x >> 31)) >> 1
