"""The scheduler: one plan per step from requests, memory and the state of the switch.

`schedule` is the batch boundary and kept short; `prepare` is everything that may happen while the ranks
compute; `update` takes a result. Torch-free and without a clock of its own, so that the simulator runs it too.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from splash.core.config import SchedulerConfig
from splash.core.errors import CapacityError, RequestError
from splash.core.events import (
    Event,
    EventSink,
    FirstToken,
    PolicyAsked,
    RequestAdmitted,
    RequestArrived,
    RequestFinished,
    RequestPreempted,
    StepDone,
)
from splash.core.request import FinishReason, Request
from splash.kv.blocks import Block, KVStore
from splash.kv.pool import PageState
from splash.kv.slots import MemoryPlan
from splash.layout.holders import Topology
from splash.layout.layouts import Assignment, assigned, layout_named
from splash.layout.rows import section_key_of
from splash.sched.batch import RowBytes, chunk_method, share_budget
from splash.sched.draft import PlanDraft
from splash.sched.goals import longest_held, room, stripe_offset, tokens_held
from splash.sched.observe import load_of, pool_sample, rows_by
from splash.sched.policy import Decision, Policy
from splash.sched.queue import WaitingQueue
from splash.sched.record import Record
from splash.sched.step import Admit, Chunk, Clock, PageGrant, StepPlan, StepResult
from splash.sched.target import Target, target_named
from splash.sched.transition import Transitions

IDLE_COPY_FACTOR = 4
"""With no rows to disturb, copies may take this many times the budget of a step."""
MEMORY_BOUND_STEPS = 8
"""Steps for which a lack of memory is remembered."""
PROMPT_WEIGHT = 1 / 64
"""Of one step in the mean of prompt tokens a step."""
RECENT_PROMPTS = 64
"""Requests whose lengths tell what the next ones will be like."""
REBALANCE_PERIOD = 32
"""Steps between two looks at the owners' shares."""


class Output(NamedTuple):
    """What a step gave one request."""

    request: int
    tokens: tuple[int, ...]
    finish_reason: FinishReason | None


class Scheduler:
    """State: waiting queue, running records, the KV store, the transitions; nothing of a device."""

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
        self._rows = rows
        self._clock = clock
        self._policy = policy
        self._eos = frozenset(eos)
        self._seed = seed
        self._sink = emit
        self._events: list[Event] = []
        self.store = KVStore(
            memory.geometry,
            topo,
            memory.pages.block_size,
            state_pages=memory.state_pages,
            prefer_slots=prefer_slots,
        )
        self.waiting = WaitingQueue()
        self.admitting = True
        """False: who waits goes on waiting, so that the deployment empties."""
        self.running: dict[int, Record] = {}
        """By id, in order of admission."""
        self.transitions = Transitions(
            store=self.store,
            running=self.running,
            config=config,
            token_bytes=memory.pages.token_bytes,
            target=target_named(target),
            emit=self._events.append,
            now=clock.now,
        )
        self._records: dict[int, Record] = {}
        self._gone: list[int] = []
        self._decodes: list[Record] = []
        self._decode_ids: tuple[int, ...] = ()
        self._decode_places: Counter[Assignment] = Counter()
        self._chunk_places: Counter[Assignment] = Counter()
        self._shown: tuple[Counter[Assignment], tuple[dict[str, int], list[int]]] | None = None
        """Rows by layout and by rank of the decodes at these places."""
        self._decodes_stale = self._decodes_thinned = False
        """The list of decodes is to be made anew; or only some have left it."""
        self._sampling: list[Record] = []
        """Records that the step in flight samples for, in the plan's order."""
        self._index = -1
        self._collected = -1
        self._plan: StepPlan | None = None
        self._flips = 0
        self._wanted: Decision | None = None
        self._refused: dict[Target, int] = {}
        """Targets that did not fit, with the free pages of that moment: not asked for again until there are more."""
        self._last_end_s: float | None = None
        self._step_s = 0.0
        self._decode_s: float | None = None
        self._prompt_rows = 0.0
        self._recent_prompts: deque[int] = deque(maxlen=RECENT_PROMPTS)
        self._page_copy_floor = memory.pages.token_bytes * memory.pages.block_size
        self._next_sample_s = 0.0
        self._memory_bound_step = -(10**9)
        self._blocked = False
        """The first in the queue does not fit, and nothing will come free by itself."""
        self._asked = self._stirred = 0
        """Steps of the last question to the policy, and of the last change of the load."""

    # ---- requests

    def check_request(self, num_prompt: int, max_tokens: int) -> None:
        """RequestError unless such a request can be served under the present target."""
        limit = self._config.max_model_len
        if num_prompt < 1:
            raise RequestError("the prompt is empty; it must hold at least one token")
        if num_prompt >= limit:
            raise RequestError(
                f"the prompt has {num_prompt} tokens, the limit of prompt and output together is {limit}"
                f" (--max-model-len): at most {limit - 1} prompt tokens leave room for one"
            )
        length = min(num_prompt + max_tokens, limit) - 1  # the last token is sampled, not cached
        layout = self.transitions.target.layout_of(length)
        holds = longest_held(layout, self.store)
        if length > holds:
            raise RequestError(
                f"the request may cache {length} tokens ({num_prompt} prompt, {max_tokens} max_tokens) and the pool"
                f" holds at most {holds} tokens of one request under {layout};"
                f" lower max_tokens or raise --kv-pages or --pool-mib"
            )

    def add(self, request: Request, forced: tuple[int, ...] = ()) -> None:
        """Queue a request that `check_request` accepts (RequestError otherwise; nothing is lost)."""
        self.check_request(len(request.prompt), request.params.max_tokens)
        if request.id in self._records:
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
        self._records[request.id] = record
        self.waiting.add(record)
        self._stirred = self._index + 1
        self._recent_prompts.append(record.num_prompt)
        self._emit(RequestArrived(self._clock.now(), request.id, record.num_prompt, params.max_tokens))

    def abort(self, request_id: int) -> Output | None:
        """End a request wherever it is; None if it is unknown or has ended."""
        record = self._records.get(request_id)
        if record is None:
            return None
        if not record.running:
            self.waiting.remove(record)
        return self._finish(record, (), "abort")

    def set_target(
        self, layout_name: str, reason: str, *, striped_from: int | None = None, keep_policy: bool = False
    ) -> None:
        """Aim for a layout from the next step's background on (ConfigError if there is none of that name), and stay
        there: the policy is not asked any more, unless it is kept. TargetRefused is emitted, and nothing changes, if
        it cannot fit."""
        layout_named(layout_name)
        if not keep_policy:
            self._policy = None
        self._wanted = Decision(layout_name, reason, striped_from=striped_from)

    def set_goal(self, request_id: int, layout_name: str, home: int) -> None:
        """Move one running request on its own, e.g. to another owner or into a layout of its own.
        CapacityError, with numbers, if that place cannot hold what it may grow to."""
        record = self.running[request_id]
        holds = longest_held(layout_named(layout_name), self.store)
        if record.limit - 1 > holds:
            raise CapacityError(
                f"request {request_id} may cache {record.limit - 1} tokens; under {layout_name} one request has {holds}"
            )
        goal = assigned(layout_named(layout_name), home)
        self.transitions.set_goal(record, goal, "a goal of its own", self._index)

    def rebalance(self) -> int:
        """Even out the owners' shares; returns how many requests will move."""
        return self.transitions.rebalance(self._index)

    @property
    def target(self) -> str:
        return self.transitions.target.name

    @property
    def next_step(self) -> int:
        """The index of the step that is planned next."""
        return self._index + 1

    @property
    def switching(self) -> bool:
        """A target is asked for, or a transition is open."""
        return self._wanted is not None or self.transitions.open

    def has_work(self) -> bool:
        """Requests, messages to the executors, or open transitions."""
        return bool(self.running or self._gone or len(self.waiting)) or self.switching

    # ---- the batch boundary

    def schedule(self) -> StepPlan | None:
        """The next step's plan, a tick without rows while a transition is open, or None if there is nothing to do."""
        if not self.has_work():
            self._last_end_s = None
            return None
        if not self.running:
            if self._policy is not None and len(self.waiting) and not self.switching:
                self._ask_policy(self._index + 1)
            self._apply_target(self._index + 1)
        draft = PlanDraft(self._index + 1)
        self._flips = self.transitions.boundary(draft)
        self._decodes_stale = self._decodes_stale or self._flips > 0
        self._grow_decodes(draft)
        self._admit(draft)
        self._take_chunks(draft)
        draft.decodes = self._take_decodes()
        self.transitions.announce(draft)
        draft.gone, self._gone = self._gone, []
        if draft.empty and not self.transitions.open:
            self._last_end_s = None
            return None
        self._index += 1
        self._plan = draft.freeze()
        return self._plan

    def prepare(self) -> None:
        """Background work of the plan in flight: retire, reserve, choose copies, ask the policy, emit events."""
        plan = self._plan
        if plan is None:
            return
        if self._policy is not None and plan.index >= self._next_question() and not self.switching:
            self._ask_policy(plan.index)
        self._apply_target(plan.index)
        if self._config.rebalance and plan.index % REBALANCE_PERIOD == 0 and not self.switching:
            self.rebalance()
        margin = self._config.watermark_pages if self.running else 0
        self.transitions.background(plan.index, self._copy_budget(plan), margin)
        self._sample_pool()
        self.drain_events()

    def update(self, result: StepResult) -> list[Output]:
        """Take the result of the step in flight: tokens, finished requests, acknowledged copies."""
        plan = self._plan
        assert plan is not None, "a result without a plan"
        assert result.index == plan.index, "results come in order, one a plan"
        self._collected = result.index
        self.transitions.collected(result.index, result.acks)
        outputs = self._take_tokens(result)
        self._note_step(plan, result, len(outputs))
        if self._config.check_invariants:
            self.check()
        return outputs

    def drain_events(self) -> None:
        """Hand all queued events to the sink."""
        events, self._events[:] = self._events[:], []
        for event in events:
            self._sink(event)

    def check(self) -> None:
        """AssertionError unless every page has exactly one use (debug)."""
        blocks = [block for record in self._records.values() for block in record.blocks]
        states = [record.state for record in self._records.values()]
        self.store.check(blocks, self.transitions.extra_pages(), states)

    # ---- many steps at once

    def steady_steps(self) -> int:
        """How many of the next steps are sure to compute the same rows as the last one, one token further each: nobody
        arrives in them, ends, is admitted or moves, and the policy is not asked. 0 if that is not sure."""
        held = not len(self.waiting) or self._blocked or len(self.running) >= self._running_limit
        if (
            self._gone
            or self._decodes_stale
            or self._decodes_thinned
            or not self._decodes
            or len(self._decodes) != len(self.running)
            or self.switching
            or not self.transitions.at_rest
            or self.store.num_retiring
            or not held
        ):
            return 0
        ends = min(r.limit - len(r.tokens) for r in self._decodes) - 1
        next_step = self._index + 1
        quiet = ends
        if self._config.rebalance:
            quiet = min(quiet, -next_step % REBALANCE_PERIOD)
        if self._policy is not None:
            quiet = min(quiet, self._next_question() - next_step)
        return max(0, quiet)

    def jump(self, times: Sequence[tuple[float, float]]) -> int:
        """The effect of one step for each (start, end) in seconds, of at most `steady_steps()`; returns how many were
        made, fewer where memory runs out. Every row gets token 0, as executors give that compute none."""
        room = self._grow_ahead(len(times))
        if not room:
            return 0
        self._note_jump(times[:room])
        self.transitions.ledger.pass_idly(room)
        zeros = [0] * room
        for record in self._decodes:
            record.computed += room
            record.tokens.extend(zeros)
            record.last_token_s = times[room - 1][1]
        if len(self.waiting) and len(self.running) < self._running_limit:
            self._memory_bound_step = self._index
        return room

    def _grow_ahead(self, num_steps: int) -> int:
        """The blocks that the decodes take in `num_steps` steps, in the order in which single steps would take them.
        Returns the steps for which there was room."""
        size = self.store.block_size
        draft = PlanDraft(self._index + 1)
        due: list[tuple[int, int]] = [
            (step, place)
            for place, record in enumerate(self._decodes)
            for step in range(record.room - record.computed, num_steps, size)
        ]
        for step, growing in groupby(sorted(due), key=_first):
            records = [self._decodes[place] for _, place in growing]
            need = _sum(self.store.fresh(record.present, len(record.blocks)) for record in records)
            if self.store.lacking(need):
                return step
            for record in records:
                self._allocate(record, record.room + 1, draft)
        return num_steps

    def _note_jump(self, times: Sequence[tuple[float, float]]) -> None:
        by_layout, by_rank = rows_by(self._decode_places, self.store.topo.ranks)
        rows = len(self._decodes)
        for started_s, ended_s in times:
            self._index += 1
            self._prompt_rows -= PROMPT_WEIGHT * self._prompt_rows
            boundary = self._note_times(started_s, ended_s, steady=True)
            self._emit(
                StepDone(
                    ended_s, self._index, ended_s - started_s, boundary, rows, 0, by_layout, by_rank, 0, rows
                )
            )
        self._collected = self._index

    # ---- parts of a boundary

    def _apply_target(self, step: int) -> None:
        """Aim for what was asked for: in the background, since goals and room of all requests are looked at."""
        if self._wanted is None:
            return
        wanted, self._wanted = self._wanted, None
        target = target_named(wanted.target, wanted.striped_from)
        if target == self.transitions.target and self.transitions.complete:
            return
        if self.transitions.retarget(target, wanted.reason, list(self.waiting), step, wanted.predicted):
            self._refused.clear()
        else:
            self._refused[target] = self._free_pages()

    def _grow_decodes(self, draft: PlanDraft) -> None:
        """A block for every decode whose last one is full; preempts the newest when memory is short."""
        self._sort_decodes()
        full = [record for record in self._decodes if record.computed >= record.room]
        for record in full:
            if record.running and not self._grow(record, record.computed + 1, draft):
                self._preempt(record, draft)

    def _grow(self, record: Record, length: int, draft: PlanDraft) -> bool:
        """Blocks for `length` tokens. Where memory is short: what is free already, else give up moves, else preempt
        the newest request with pages there. False if that is the record itself."""
        while lacking := self._allocate(record, length, draft):
            if self.store.collect(self._collected):
                continue
            self._memory_bound_step = draft.index
            if self.transitions.relieve(self._index, lacking):
                continue
            newest = next(
                r for r in reversed(self.running.values()) if r is record or _holds_page(r, lacking)
            )
            if newest is record:
                return False
            self._preempt(newest, draft)
        return True

    def _allocate(self, record: Record, length: int, draft: PlanDraft) -> list[int]:
        """Blocks for `length` tokens, or the ranks that lack pages for them; then nothing changed."""
        store, blocks = self.store, record.blocks
        first, stop = len(blocks), store.num_blocks(length)
        places = record.assignments
        need: Sequence[int]
        if len(places) == 1 and stop == first + 1:
            need = store.fresh(places[0], first)
        else:
            need = _sum(store.missing(blocks, at, first, stop) for at in places)
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

    def _preempt(self, record: Record, draft: PlanDraft) -> None:
        """Give up the pages; it will be recomputed from its tokens, before all who wait."""
        draft.forget(record.id)
        self._leave(record)
        record.computed = 0
        self.waiting.put_back(record)
        self._emit(RequestPreempted(self._clock.now(), record.id, len(record.tokens)))

    def _leave(self, record: Record) -> None:
        """Out of the running table; the executors forget it with the next plan."""
        del self.running[record.id]
        if record.decoding:
            self._decode_places[record.present] -= 1
        self.transitions.forget(record, self._index)
        record.running = record.decoding = False
        record.next = None
        self._gone.append(record.id)
        self._decodes_thinned = True
        self._stirred = self._index + 1

    def _admit(self, draft: PlanDraft) -> None:
        """First come first served, while a request's whole prompt and its recurrent state fit beside those being
        computed."""
        promised: list[int] | None = None
        held: list[int] = []
        self._blocked = False
        state = [self.store.state_pages] * self.store.topo.ranks
        while (record := self.waiting.peek()) is not None and len(self.running) < self._running_limit:
            if promised is None:
                promised = self._promised()
                held = tokens_held(self.running.values(), self.transitions.target.layout, self.store)
            goal = self._goal_for_new(record, held)
            need = self.store.missing((), goal, 0, self.store.num_blocks(len(record.tokens)))
            margin = self._config.watermark_pages if self.running else 0
            if not self._fits(_sum((need, promised, state)), margin):
                if self.store.collect(self._collected):
                    continue
                self._memory_bound_step = draft.index
                if self.transitions.drop_warm_replicas(self._index):
                    continue
                self._blocked = not self.store.num_retiring
                return
            self.waiting.pop()
            self._start(record, goal, draft)
            promised = _sum((promised, need))
            held[goal.home] += len(record.tokens) if goal.layout is self.transitions.target.layout else 0

    def _goal_for_new(self, record: Record, held: Sequence[int]) -> Assignment:
        """The target's layout for its length; its home is the rank that holds least."""
        target = self.transitions.target
        layout = target.layout_of(len(record.tokens))
        if layout is not target.layout:
            return assigned(layout, stripe_offset(record, self.store))
        return assigned(layout, held.index(min(held)))

    @property
    def _running_limit(self) -> int:
        """Requests are admitted up to this number."""
        return self._config.max_running if self.admitting else 0

    def _fits(self, need: Sequence[int], margin: int) -> bool:
        """Room for an admission. While ranks are to be made full, the slots' room is left free for that."""
        if not self.store.fits(need, margin):
            return False
        if not self.running or not self.transitions.growing:
            return True
        full = room(self.store).full
        return all(self.store.used(rank) + n <= full for rank, n in enumerate(need))

    def _start(self, record: Record, goal: Assignment, draft: PlanDraft) -> None:
        record.goal = goal
        record.present = self.transitions.admit_as(goal)
        record.running = True
        record.state = self.store.take_state()
        self.running[record.id] = record
        draft.admits.append(
            Admit(
                record.id,
                tuple(record.tokens),
                record.num_prompt,
                record.request.params,
                record.seed,
                record.present,
                record.forced,
                tuple(map(tuple, record.state)),
            )
        )
        self._emit(
            RequestAdmitted(self._clock.now(), record.id, record.present.layout.name, record.goal.home)
        )

    def _promised(self) -> list[int]:
        """Pages that running prompts will still take, per rank."""
        needs = [[0] * self.store.topo.ranks]
        for record in self.running.values():
            if not record.decoding:
                stop = self.store.num_blocks(len(record.tokens))
                needs += [
                    self.store.missing(record.blocks, at, len(record.blocks), stop)
                    for at in record.assignments
                ]
        return _sum(needs)

    def _take_chunks(self, draft: PlanDraft) -> None:
        prompts = [record for record in self.running.values() if not record.decoding]
        budget = max(1, self._config.token_budget - len(self._decodes))
        taken: list[tuple[Record, Chunk]] = []
        for record, count in share_budget(prompts, budget, self._config.max_chunk):
            if record.running and self._grow(record, record.computed + count, draft):
                method = chunk_method(
                    record.present, record.computed, count, self._rows, self.store.topo.ranks
                )
                taken.append((record, Chunk(record.id, record.computed, count, method)))
                record.computed += count
        taken = [(record, chunk) for record, chunk in taken if record.running]
        if prompts and not taken and not self._decodes and prompts[0].running:
            self._preempt(
                prompts[0], draft
            )  # alone and without room where it is: admitted anew under the target
        taken.sort(key=lambda entry: section_key_of(entry[0].present, False, entry[0].id))
        draft.chunks = [chunk for _, chunk in taken]
        self._chunk_places = Counter()
        for record, chunk in taken:
            self._chunk_places[record.present] += chunk.count
        self._sampling = [record for record, _ in taken if record.computed == len(record.tokens)]

    def _take_decodes(self) -> tuple[int, ...]:
        self._sort_decodes()
        for record in self._decodes:
            record.computed += 1
        self._sampling = self._decodes + self._sampling
        return self._decode_ids

    def _sort_decodes(self) -> None:
        """Bring the list of decodes up to date; it changes seldom, so steady steps do nothing here."""
        if self._decodes_stale:
            decoding = [r for r in self.running.values() if r.decoding]
            self._decodes = sorted(decoding, key=lambda r: section_key_of(r.present, True, r.id))
            self._decode_places = Counter(r.present for r in self._decodes)
        elif self._decodes_thinned:
            self._decodes = [r for r in self._decodes if r.decoding]
            self._decode_places = +self._decode_places
        else:
            return
        self._decode_ids = tuple(r.id for r in self._decodes)
        self._decodes_stale = self._decodes_thinned = False

    # ---- parts of the background

    def _copy_budget(self, plan: StepPlan) -> int:
        """Bytes that each source and destination may copy in the next step."""
        config = self._config
        if not plan.num_rows:
            return config.copy_bytes_per_step * IDLE_COPY_FACTOR
        if not self._step_s:
            return config.copy_bytes_per_step
        return max(self._page_copy_floor, int(config.copy_share * self._step_s * config.copy_bytes_per_s))

    def _ask_policy(self, step: int) -> None:
        """Put the question, and want what the answer says; a target that was refused only with more free pages."""
        assert self._policy is not None
        self._asked = step
        load = load_of(
            step,
            self.running.values(),
            list(self.waiting),
            self.transitions.target,
            memory_bound=step - self._memory_bound_step <= MEMORY_BOUND_STEPS,
            prompt_rows=self._prompt_rows,
            recent_prompts=tuple(self._recent_prompts),
            decode_s=self._decode_s,
        )
        decision = self._policy.decide(load)
        if decision is None:
            return
        if decision.predicted:
            self._emit(
                PolicyAsked(
                    self._clock.now(),
                    step,
                    self.target,
                    decision.target,
                    decision.reason,
                    decision.predicted,
                    self._decode_s,
                )
            )
        wanted = target_named(decision.target, decision.striped_from)
        if wanted != self.transitions.target and self._free_pages() > self._refused.get(wanted, -1):
            self._wanted = decision

    def _next_question(self) -> int:
        """The step in which the policy is asked next: soon if the load has changed since the last time."""
        assert self._policy is not None
        stirred = self._stirred >= self._asked
        return self._asked + (self._policy.period_steps if stirred else self._policy.calm_period_steps)

    def _free_pages(self) -> int:
        return sum(pool.available for pool in self.store.pools)

    def _sample_pool(self) -> None:
        now = self._clock.now()
        if now >= self._next_sample_s:
            self._next_sample_s = now + self._config.sample_period_s
            self._emit(pool_sample(now, self.store, self.running.values(), len(self.waiting)))

    # ---- parts of an update

    def _take_tokens(self, result: StepResult) -> list[Output]:
        now = self._clock.now()
        outputs: list[Output] = []
        assert len(result.tokens) == len(self._sampling), "one token for each row that samples"
        for record, token in zip(self._sampling, result.tokens, strict=True):
            if not record.running:
                continue
            if record.forced and record.num_output < len(record.forced):
                token = record.forced[record.num_output]
            tokens = record.tokens
            tokens.append(token)
            if not record.decoding:
                record.decoding = True
                self._decodes_stale = True
                if record.first_token_s is None:
                    record.first_token_s = now
                    self._emit(FirstToken(now, record.id, now - record.arrival_s))
            record.last_token_s = now
            if token in record.stops:
                outputs.append(self._finish(record, (token,), "stop"))
            elif len(tokens) >= record.limit:
                outputs.append(self._finish(record, (token,), "length"))
            else:
                outputs.append(Output(record.id, (token,), None))
        self._sampling = []
        return outputs

    def _finish(self, record: Record, tokens: tuple[int, ...], reason: FinishReason) -> Output:
        if record.running:
            self._leave(record)
        del self._records[record.id]
        count = record.num_output
        ttft = tpot = None
        if record.first_token_s is not None:
            ttft = record.first_token_s - record.arrival_s
            if count > 1:
                tpot = (record.last_token_s - record.first_token_s) / (count - 1)
        self._emit(RequestFinished(self._clock.now(), record.id, reason, count, ttft, tpot))
        return Output(record.id, tokens, reason)

    def _note_step(self, plan: StepPlan, result: StepResult, num_tokens: int) -> None:
        if not plan.num_rows:
            self._last_end_s = None
            return
        steady = not plan.chunks and not self.switching
        self._prompt_rows += PROMPT_WEIGHT * (sum(c.count for c in plan.chunks) - self._prompt_rows)
        boundary = self._note_times(result.started_s, result.ended_s, steady=steady)
        switch = self.transitions.switch
        if switch is not None:
            switch.max_boundary_s = max(switch.max_boundary_s, boundary)
        by_layout, by_rank = self._rows_by()
        self._emit(
            StepDone(
                self._clock.now(),
                plan.index,
                result.forward_s,
                boundary,
                len(plan.decodes),
                sum(c.count for c in plan.chunks),
                by_layout,
                by_rank,
                self._flips,
                num_tokens,
            )
        )

    def _note_times(self, started_s: float, ended_s: float, *, steady: bool) -> float:
        """Keeps the running means of a step's time; returns the boundary before it. `steady`: decodes alone, all of
        them where the target wants them."""
        last_end_s, self._last_end_s = self._last_end_s, ended_s
        forward_s = ended_s - started_s
        self._step_s = 0.8 * self._step_s + 0.2 * forward_s if self._step_s else forward_s
        if last_end_s is None:
            return 0.0
        if steady:
            step_s = ended_s - last_end_s
            self._decode_s = step_s if self._decode_s is None else 0.8 * self._decode_s + 0.2 * step_s
        else:
            self._decode_s = None
        return started_s - last_end_s

    def _rows_by(self) -> tuple[dict[str, int], list[int]]:
        """`rows_by` of the step in flight; looked up again only when it can have changed."""
        places = self._decode_places
        if self._chunk_places or self._shown is None or self._shown[0] is not places:
            shown = rows_by(places + self._chunk_places, self.store.topo.ranks)
            self._shown = None if self._chunk_places else (places, shown)
            return shown
        return self._shown[1]

    def _emit(self, event: Event) -> None:
        self._events.append(event)


def _sum(needs: Iterable[Sequence[int]]) -> list[int]:
    """Element-wise sum of page counts per rank."""
    return [sum(column) for column in zip(*needs, strict=True)]


def _first(pair: tuple[int, int]) -> int:
    return pair[0]


def _derived_seed(seed: int, request_id: int) -> int:
    """A seed of its own for every request, the same in every run: one round of splitmix64."""
    x = (seed * 0x9E3779B97F4A7C15 + request_id + 1) * 0xBF58476D1CE4E5B9 & (2**64 - 1)
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & (2**64 - 1)
    return (x ^ (x >> 31)) >> 1


def _holds_page(record: Record, ranks: Collection[int]) -> bool:
    """Whether a request has a page on one of `ranks`; recurrent state is on all."""
    return bool(record.state) or any(rank in ranks for block in record.blocks for _, rank in block.copies)
