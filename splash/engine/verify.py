"""Served again in one fixed layout, teacher-forced with the tokens of the first run: is every token the same?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from splash.sched.step import StepPlan, StepResult

TIE_GAP = 2e-4
"""Two greedy tokens whose logits are closer than this are a tie (DESIGN §8)."""


@dataclass(frozen=True, slots=True)
class Difference:
    """`expected` was served first, `found` is best now (None: the executor does not say which); `gap` is how
    much better its logit is."""

    request: int
    position: int
    """Of the token in the request's output, from 0."""
    expected: int
    found: int | None
    gap: float

    @property
    def tie(self) -> bool:
        return self.gap < TIE_GAP

    def __str__(self) -> str:
        found = "another" if self.found is None else self.found
        return (
            f"request {self.request}, output token {self.position}: served {self.expected},"
            f" in the fixed layout {found}, logit gap {self.gap:.2e}"
        )


@dataclass(slots=True)
class Verifier:
    """Folds the plans and results of a teacher-forced run. `expected`: output tokens by request id."""

    expected: Mapping[int, tuple[int, ...]]
    num_compared: int = 0
    ties: list[Difference] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    _prompts: dict[int, int] = field(default_factory=dict)
    _known: dict[int, int] = field(default_factory=dict)
    """Tokens known of each running request: its prompt and the forced tokens so far."""

    def step(self, plan: StepPlan, result: StepResult) -> None:
        for admit in plan.admits:
            self._prompts[admit.request], self._known[admit.request] = admit.num_prompt, len(admit.tokens)
        sampled = [
            *plan.decodes,
            *(c.request for c in plan.chunks if c.start + c.count == self._known[c.request]),
        ]
        for request, token, gap in zip(sampled, result.tokens, result.gaps, strict=True):
            self._compare(request, token, gap)
            self._known[request] += 1

    def _compare(self, request: int, token: int, gap: float) -> None:
        position = self._known[request] - self._prompts[request]
        expected = self.expected[request][position]
        self.num_compared += 1
        if token != expected or gap > 0:
            other = token if token != expected else None
            difference = Difference(request, position, expected, other, gap)
            (self.ties if difference.tie else self.differences).append(difference)

    @property
    def missing(self) -> int:
        """Tokens that were expected and never compared."""
        return sum(map(len, self.expected.values())) - self.num_compared
