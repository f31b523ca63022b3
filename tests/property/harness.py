"""A scheduler and a mirror of its executors, driven step by step; shared by the property tests."""

from __future__ import annotations

from splash.core.config import SchedulerConfig
from splash.core.events import Event
from splash.core.params import SamplingParams
from splash.core.request import Request
from splash.kv.geometry import PoolGeometry
from splash.kv.sections import Field, page_format
from splash.kv.slots import MemoryPlan, ShardFormat
from splash.kv.state import MATRICES, StateFormat, StateSection
from splash.layout.holders import Topology
from splash.layout.layouts import LAYOUTS
from splash.sched.batch import RowBytes
from splash.sched.policy import Policy
from splash.sched.results import Output
from splash.sched.scheduler import Scheduler
from splash.sched.step import ManualClock, StepPlan
from tests.property.mirror import MirrorExecutor

PAIRS = [(a, b) for a in LAYOUTS for b in LAYOUTS if a != b]


def small_memory(
    ranks: int, kv_pages: int, *, block_size: int = 4, slot_pages: int = 3, state_pages: int = 0
) -> MemoryPlan:
    """A page of two layers of 8 bytes a token; slots of `slot_pages` pages; a recurrent state of `state_pages`."""
    pages = page_format([[Field("latent", 2, 4, "float32")]] * 2, block_size)
    shards = ShardFormat((), slot_pages * pages.page_bytes)
    geometry = PoolGeometry(ranks * slot_pages + 1 + kv_pages, pages.page_bytes, ranks, shards.num_bytes)
    rows = pages.page_bytes // 64 * state_pages
    state = StateFormat((StateSection(MATRICES, 1, rows, 16, "float32"),), pages.page_bytes)
    return MemoryPlan(pages, shards, geometry, state if state_pages else None)


class Harness:
    """Runs steps; every step checks conservation and, in the mirror, that every read is right."""

    def __init__(
        self,
        *,
        ranks: int = 4,
        groups: int = 1,
        kv_pages: int = 64,
        target: str = "tp",
        policy: Policy | None = None,
        prefer_slots: bool = False,
        delay: int = 0,
        seed: int = 0,
        ahead: int = 0,
        slot_pages: int = 3,
        block_size: int = 4,
        state_pages: int = 0,
        **config: object,
    ) -> None:
        """`ahead`: plans that are made ahead of the results in hand; each takes effect in the executor at once."""
        self.ahead = ahead
        self.topo = Topology(ranks, groups)
        self.memory = small_memory(
            ranks, kv_pages, slot_pages=slot_pages, block_size=block_size, state_pages=state_pages
        )
        settings = {
            "token_budget": 32,
            "max_chunk": 16,
            "max_model_len": 512,
            "copy_bytes_per_step": 256,
            **config,
        }
        self.events: list[Event] = []
        self.clock = ManualClock()
        self.scheduler = Scheduler(
            memory=self.memory,
            topo=self.topo,
            config=SchedulerConfig(check_invariants=True, **settings),  # type: ignore[arg-type]
            rows=RowBytes(16, 2),
            target=target,
            policy=policy,
            clock=self.clock,
            emit=self.events.append,
            prefer_slots=prefer_slots,
        )
        self.executor = MirrorExecutor(self.memory, self.topo, delay=delay, seed=seed)
        self.outputs: dict[int, list[int]] = {}
        self.reasons: dict[int, str] = {}
        self.plans: list[StepPlan] = []
        self._next_id = 0

    def add(self, num_prompt: int, max_tokens: int) -> int:
        request = Request(
            self._next_id, tuple(range(1, num_prompt + 1)), SamplingParams(max_tokens=max_tokens)
        )
        self._next_id += 1
        self.scheduler.add(request)
        self.outputs[request.id] = []
        return request.id

    def abort(self, request_id: int) -> None:
        output = self.scheduler.abort(request_id)
        if output is not None:
            self._take([output])

    def step(self) -> bool:
        """Plan a step and take an older one's result; False if there was nothing to do."""
        begun = self.begin()
        if begun:
            self.scheduler.prepare()
        if not begun and not self.scheduler.in_flight:
            return False
        if not begun or self.scheduler.in_flight > self.ahead:
            self.end()
        return True

    def begin(self) -> bool:
        """Plan and submit a step; False if there is none. Its background comes next."""
        plan = self.scheduler.schedule()
        if plan is None:
            return False
        self.plans.append(plan)
        self.executor.submit(plan)
        return True

    def end(self) -> None:
        """The result of the oldest step that was begun."""
        self.clock.time_s += 0.01
        self._take(self.scheduler.update(self.executor.collect()))

    def drain(self, limit: int = 5000) -> None:
        """Step until nothing is left to do; AssertionError after `limit` steps (something is stuck)."""
        for _ in range(limit):
            if not self.step():
                assert not self.scheduler.has_work(), "the engine is stuck"
                break
        else:
            raise AssertionError(
                f"still busy: {list(self.scheduler.running)} {len(self.scheduler.waiting)} waiting"
            )
        self.scheduler.drain_events()

    def settle(self, limit: int = 500) -> None:
        """Step until no transition is open."""
        for _ in range(limit):
            if not self.scheduler.switching:
                return
            self.step()
        raise AssertionError("the transition does not end")

    def _take(self, outputs: list[Output]) -> None:
        for request, tokens, reason in outputs:
            self.outputs[request] += tokens
            if reason is not None:
                self.reasons[request] = reason


def expected_tokens(request: int, num_prompt: int, count: int) -> list[int]:
    """What the mirror samples: a function of request and position only."""
    return [
        (request * 7919 + position * 104729) % 50021 for position in range(num_prompt, num_prompt + count)
    ]
