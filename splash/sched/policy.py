"""When to change the layout, and to which: the interface, and a policy of thresholds."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from splash.layout.layouts import CP, DCP, DOP, DP, LAYOUTS, TP, Layout
from splash.sched.arriving import Arrived
from splash.sched.target import Target


@dataclass(frozen=True, slots=True)
class Load:
    """The work at hand as a policy sees it at a batch boundary. Lengths in tokens."""

    step: int
    lengths: Sequence[int]
    """Of each decoding request, prompt and output."""
    outputs: Sequence[int]
    """Of each decoding request, what it has generated."""
    prompts: Sequence[tuple[int, int]]
    """(computed, left to compute) of each running prompt."""
    waiting: Sequence[int]
    """Length of each waiting request, in the queue's order."""
    memory_bound: bool
    """A request waits for pages, or was preempted lately."""
    target: str
    copy_bytes_per_s: float
    """At which background copies arrive on a rank, as they did of late."""
    striped_from: int | None = None
    """Tokens from which the target stripes a request; see `sched.target`."""
    arrived: Sequence[Arrived] = ()
    """The requests that came last, in order."""
    refused: Collection[Target] = ()
    """Targets that cannot be reached for lack of memory, as far as is known."""
    decode_s: float | None = None
    """Observed seconds, from end to end, of late steps of decodes alone under the target; None: there were none."""

    @property
    def present(self) -> Target:
        """The target as it is."""
        return Target(LAYOUTS[self.target], self.striped_from)

    @property
    def running(self) -> int:
        return len(self.lengths) + len(self.prompts)

    @property
    def mean_context(self) -> int:
        total = sum(self.lengths) + sum(done + left for done, left in self.prompts)
        return total // self.running if self.running else 0

    @property
    def longest_prompt_left(self) -> int:
        """Prompt tokens still to be computed of one request, running or waiting."""
        return max(max((left for _, left in self.prompts), default=0), max(self.waiting, default=0))


@dataclass(frozen=True, slots=True)
class Decision:
    """A target: a new one, or the present one. `predicted` maps layouts to the seconds that the policy expects of a
    step of decodes, if it predicts any."""

    target: str
    reason: str
    predicted: dict[str, float] = field(default_factory=dict)
    striped_from: int | None = None
    """Of an owner layout: longer requests shall be striped."""


class Policy(Protocol):
    """Asked every few steps, while ranks compute, and before the first step after an idle time. Staying is None, or the
    present target again with predictions. Deterministic in what it is given."""

    name: str
    period_steps: int
    """Steps between two questions while the load changes."""
    calm_period_steps: int
    """Steps between two questions while it does not."""

    def decide(self, load: Load) -> Decision | None: ...


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Where the regimes of REFERENCE §5 begin, scaled to a small model on a CPU."""

    many: int = 6
    """Running requests from which owners win."""
    long_context: int = 192
    """Mean context from which few requests are striped."""
    long_prompt: int = 512
    """Prompt tokens left in one request from which it is computed by all ranks."""
    dwell_steps: int = 24
    """Steps a target is kept at least."""
    confirm_asks: int = 2
    """Questions in a row (one every few steps) that must give the same wish before a change."""


class ThresholdPolicy:
    """Few short requests: tp. Many: dp, or dop when memory binds. Few long ones: dcp. A long prompt: cp.

    A change needs `confirm_asks` equal wishes in a row and `dwell_steps` since the last one.
    """

    name = "auto (thresholds)"
    period_steps = calm_period_steps = 2

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self._at = thresholds or Thresholds()
        self._wish = ""
        self._agreed = 0
        self._changed_at = -(10**9)

    def decide(self, load: Load) -> Decision | None:
        layout, reason = self._preferred(load)
        self._agreed = self._agreed + 1 if layout.name == self._wish else 1
        self._wish = layout.name
        if (
            layout.name == load.target
            or self._agreed < self._at.confirm_asks
            or load.step - self._changed_at < self._at.dwell_steps
        ):
            return None
        self._changed_at = load.step
        return Decision(layout.name, reason)

    def _preferred(self, load: Load) -> tuple[Layout, str]:
        prompt, waiting = load.longest_prompt_left, len(load.waiting)
        at = self._at
        if load.memory_bound:
            return DOP, f"KV memory binds: {load.running} running, {waiting} waiting"
        if prompt >= at.long_prompt and load.running < at.many:
            return CP, f"a long prompt: {prompt:,} tokens left"
        if load.running + waiting >= at.many:
            return DP, f"many requests: {load.running} running, {waiting} waiting"
        if load.running and load.mean_context >= at.long_context:
            return DCP, f"few long requests: {load.running} running, mean context {load.mean_context:,}"
        return TP, f"few short requests: {load.running} running, {waiting} waiting"
