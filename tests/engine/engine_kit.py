"""The real loop and scheduler over ranks that have no tensors: what the engine's tests share."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from splash.core.config import SchedulerConfig
from splash.core.errors import RankFailure
from splash.core.events import Event, EventSink, RunStarted
from splash.core.params import SamplingParams
from splash.core.request import Request
from splash.engine.deployment import Deployment
from splash.engine.loop import PLANS_AHEAD, Inbox, LatchedClock, Loop
from splash.engine.trace import TraceWriter
from splash.layout.holders import Topology
from splash.sched.batch import RowBytes
from splash.sched.policy import Policy
from splash.sched.results import Output
from splash.sched.scheduler import Scheduler
from splash.sched.step import Clock, StepPlan, StepResult
from tests.property.harness import small_memory
from tests.property.mirror import MirrorExecutor


class TimedMirror(MirrorExecutor):
    """A mirror with a clock of its own: a step takes 10 ms, a boundary 1 ms, everything else nothing."""

    time_s = 0.0
    closed = False
    result: StepResult | None = None

    def submit(self, plan: StepPlan) -> None:
        super().submit(plan)
        self.time_s += 0.001

    def collect(self) -> StepResult:
        result = super().collect()
        started, self.time_s = self.time_s, self.time_s + 0.010
        return result._replace(started_s=started, ended_s=self.time_s)

    def close(self) -> None:
        self.closed = True


@dataclass
class Collected:
    """An outbox that keeps everything."""

    outputs: list[Output] = field(default_factory=list)
    steps: list[tuple[StepPlan, StepResult]] = field(default_factory=list)
    refused: dict[int, BaseException] = field(default_factory=dict)

    def deliver(self, outputs: Sequence[Output]) -> None:
        self.outputs += outputs

    def refuse(self, request: int, error: BaseException) -> None:
        self.refused[request] = error

    def stepped(self, plan: StepPlan, result: StepResult) -> None:
        self.steps.append((plan, result))

    def tokens(self, request: int) -> list[int]:
        return [token for o in self.outputs if o.request == request for token in o.tokens]

    def reasons(self) -> dict[int, str]:
        return {o.request: o.finish_reason for o in self.outputs if o.finish_reason}


class Kit:
    """A loop to be driven by hand: `loop.step()`, or `loop.run()` after `inbox.finish()`."""

    def __init__(
        self,
        *,
        ranks: int = 2,
        kv_pages: int = 64,
        target: str = "tp",
        policy: Policy | None = None,
        trace: TraceWriter | None = None,
        ahead: int = PLANS_AHEAD,
        **config: int,
    ) -> None:
        memory, topo = small_memory(ranks, kv_pages), Topology(ranks, 1)
        settings = {
            "token_budget": 32,
            "max_chunk": 16,
            "max_model_len": 512,
            "copy_bytes_per_step": 256,
            **config,
        }
        self.events: list[Event] = []
        self.inbox = Inbox()
        self.outbox = Collected()
        self.executor = TimedMirror(memory, topo)
        self.clock = LatchedClock(lambda: self.executor.time_s)
        self.scheduler = Scheduler(
            memory=memory,
            topo=topo,
            config=SchedulerConfig(check_invariants=True, **settings),
            rows=RowBytes(16, 2),
            target=target,
            policy=policy,
            clock=self.clock,
            emit=self._emit,
        )
        self._trace = trace
        self.loop = Loop(
            scheduler=self.scheduler,
            executor=self.executor,
            clock=self.clock,
            inbox=self.inbox,
            outbox=self.outbox,
            trace=trace,
            ahead=ahead,
        )

    def _emit(self, event: Event) -> None:
        self.events.append(event)
        if self._trace:
            self._trace.event(event)

    def free_pages(self) -> list[int]:
        return [pool.available for pool in self.scheduler.store.pools]


def request(number: int, num_prompt: int = 5, max_tokens: int = 4, **params: object) -> Request:
    return Request(number, tuple(range(1, num_prompt + 1)), SamplingParams(max_tokens=max_tokens, **params))  # type: ignore[arg-type]


class MirrorDeployment:
    """What an engine asks of a deployment, over a mirror; text is its tokens' numbers. `pace_s`: of a step."""

    vocab_size = 60000

    def __init__(self, *, pace_s: float = 0.0, fail_at: int = -1, hang_at: int = -1, **config: int) -> None:
        self._memory, self._topo = small_memory(2, 64), Topology(2, 1)
        settings = {
            "token_budget": 32,
            "max_chunk": 16,
            "max_model_len": 512,
            "copy_bytes_per_step": 256,
            **config,
        }
        self._config = SchedulerConfig(check_invariants=True, **settings)
        self.executor = RealtimeMirror(
            self._memory, self._topo, pace_s=pace_s, fail_at=fail_at, hang_at=hang_at
        )
        self.schedulers: list[Scheduler] = []

    def token_ids(self, prompt: str | Sequence[int]) -> tuple[int, ...]:
        return tuple(map(int, prompt.split())) if isinstance(prompt, str) else tuple(prompt)

    check_ids = Deployment.check_ids

    def detokenizer(self) -> Numbers:
        return Numbers()

    def scheduler(self, *, clock: Clock, emit: EventSink) -> Scheduler:
        scheduler = Scheduler(
            memory=self._memory,
            topo=self._topo,
            config=self._config,
            rows=RowBytes(16, 2),
            target="tp",
            policy=None,
            clock=clock,
            emit=emit,
        )
        self.schedulers.append(scheduler)
        return scheduler

    def launch(self, *, gaps: bool = False) -> TimedMirror:
        return self.executor

    def run_started(self, t: float) -> RunStarted:
        return RunStarted(t, "mirror", "nothing", "", 2, "tp", "fixed", 4, 64, 71, 3)


class RealtimeMirror(TimedMirror):
    """Its steps take `pace_s` of real time; a rank dies at step `fail_at`, or hangs at `hang_at`."""

    def __init__(self, *args: Any, pace_s: float, fail_at: int, hang_at: int) -> None:
        super().__init__(*args)
        self._pace_s, self._fail_at, self._hang_at = pace_s, fail_at, hang_at
        self._closing = threading.Event()

    @property
    def hung(self) -> bool:
        return self._hang_at >= 0

    def collect(self) -> StepResult:
        time.sleep(self._pace_s)
        result = super().collect()
        if result.step == self._fail_at:
            raise RankFailure("rank 1 was killed by signal 9")
        if result.step == self._hang_at:
            self._closing.wait()
            raise RankFailure("the rank job was closed")
        return result

    def close(self) -> None:
        super().close()
        self._closing.set()


class Numbers:
    """A detokenizer that holds every second token back."""

    def __init__(self) -> None:
        self._held: list[int] = []

    def push(self, tokens: Sequence[int]) -> str:
        self._held += tokens
        if len(self._held) < 2:
            return ""
        text = "".join(f"{token} " for token in self._held)
        self._held.clear()
        return text

    def finish(self) -> str:
        return "".join(f"{token} " for token in self._held)
