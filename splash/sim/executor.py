"""An executor that computes nothing: it asks the cost model how long a step takes, and moves a virtual clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np

from splash.hw.cost import CostModel
from splash.sched.step import PageCopy, ShardCopy, StepPlan, StepResult
from splash.sim.clock import VirtualClock, seconds
from splash.sim.mirror import LengthMirror
from splash.sim.workload import NANOSECONDS, nanoseconds

TICK_NS = 1_000_000
"""A step without rows waits that long for its copies, at least."""


class CostExecutor:
    """Steps take whole nanoseconds. Copies run beside them at the device's copy bandwidth, one queue a rank, and are
    acknowledged with the first result after they are done."""

    def __init__(
        self, cost: CostModel, clock: VirtualClock, *, token_bytes: int, free_copies: bool = False
    ) -> None:
        """`token_bytes`: of one token of a page. `free_copies`: they take no time and disturb nothing (the oracle)."""
        self._cost = cost
        self._clock = clock
        self._token_bytes = token_bytes
        self._free = free_copies
        self._mirror = LengthMirror(cost.keeps)
        self._copying: deque[tuple[int, int]] = deque()
        """(done at ns, id), in the order in which they were queued."""
        self._busy_until_ns = [0] * cost.ranks
        self._results: deque[tuple[int, StepResult]] = deque()

    def begin(self) -> None:
        """Planning takes no time."""

    def submit(self, plan: StepPlan) -> None:
        work, sampled = self._mirror.apply(plan)
        start_ns = self._clock.now_ns
        step_s = self._cost.step_s(work) if plan.num_rows else 0.0
        disturbed_s = self._copy(plan.copies, start_ns)
        end_ns = start_ns + (nanoseconds(step_s + disturbed_s) if plan.num_rows else TICK_NS)
        acks = self._acknowledged(end_ns)
        result = StepResult(
            plan.step, (0,) * sampled, acks, started_s=seconds(start_ns), ended_s=seconds(end_ns)
        )
        self._results.append((end_ns, result))

    def collect(self) -> StepResult:
        end_ns, result = self._results.popleft()
        self._clock.move_to(end_ns)
        return result

    def close(self) -> None:
        """Nothing to end."""

    def forget(self, requests: Iterable[int]) -> None:
        """Those have left, and no plan will say so."""
        self._mirror.forget(requests)

    @property
    def due(self) -> bool:
        """Steps are planned with every result in hand."""
        return True

    def ends_ahead(self, num_steps: int) -> list[int]:
        """When each of the next `num_steps` steps of the present decodes will end, nanoseconds."""
        total = np.broadcast_to(self._cost.step(self._mirror.ahead(num_steps)).total, num_steps)
        steps_ns = np.rint(total * NANOSECONDS).astype(np.int64)
        ends: list[int] = (self._clock.now_ns + np.cumsum(steps_ns)).tolist()
        return ends

    def advance(self, num_steps: int, end_ns: int) -> None:
        """The present decodes have made `num_steps` steps, the last of which ended at `end_ns`."""
        self._mirror.advance(num_steps)
        self._clock.move_to(end_ns)

    def _copy(self, copies: Iterable[PageCopy | ShardCopy], now_ns: int) -> float:
        """Queue copies; returns the seconds by which they hold up the step."""
        if self._free:
            self._copying.extend((now_ns, copy.id) for copy in copies)
            return 0.0
        through = [0] * self._cost.ranks
        """Bytes read from or written to each rank's memory."""
        for copy in copies:
            if isinstance(copy, PageCopy):
                source, num_bytes = copy.src_rank, (copy.stop - copy.first) * self._token_bytes
            else:
                source, num_bytes = copy.shard, copy.stop - copy.first
            through[source] += num_bytes
            through[copy.dst_rank] += num_bytes
            begin = max(now_ns, self._busy_until_ns[copy.dst_rank])
            apart = self._cost.apart(source, copy.dst_rank)
            done = begin + nanoseconds(self._cost.copy_s(num_bytes, between_nodes=apart))
            self._busy_until_ns[copy.dst_rank] = done
            self._copying.append((done, copy.id))
        return self._cost.disturbance_s(max(through))

    def _acknowledged(self, now_ns: int) -> tuple[int, ...]:
        done = [copy_id for time_ns, copy_id in self._copying if time_ns <= now_ns]
        if done:
            self._copying = deque(entry for entry in self._copying if entry[0] > now_ns)
        return tuple(done)
