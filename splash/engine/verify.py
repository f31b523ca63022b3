"""Served again in one fixed layout, teacher-forced with the tokens of the first run: is every token the same?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from splash.core.params import SamplingParams
from splash.engine.client import Engine
from splash.engine.deployment import Deployment
from splash.sched.step import StepPlan, StepResult

LAYOUT = "tp"
"""What is compared with."""
DTYPE = "float32"
"""What `TIE_GAP` holds for."""
TIE_GAP = 2e-4
"""Two greedy tokens whose logits are closer than this are a tie (DESIGN §8)."""
MAX_NAMED = 20
"""Differences of which the better token is looked up; it costs a prompt each."""


@dataclass(frozen=True, slots=True)
class Served:
    """A request of the first run, by its number there, and what came out of it."""

    request: int
    prompt: tuple[int, ...]
    params: SamplingParams
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """`expected` was served first, `found` is best in the fixed layout, by `gap` in its logit."""

    request: int
    position: int
    """Of the token in the request's output, from 0."""
    expected: int
    found: int | None
    """None: it was not looked up."""
    gap: float

    @property
    def tie(self) -> bool:
        return self.gap < TIE_GAP

    def __str__(self) -> str:
        found = "another" if self.found is None else self.found
        return (
            f"request {self.request}, output token {self.position}: served {self.expected},"
            f" in {LAYOUT} {found}, logit gap {self.gap:.2e}"
        )


@dataclass(slots=True)
class Verifier:
    """Folds the plans and results of a teacher-forced run of `served`, whose ids there are their places."""

    served: Sequence[Served]
    num_compared: int = 0
    found: list[Difference] = field(default_factory=list)
    _known: dict[int, int] = field(default_factory=dict)
    """Tokens known of each running request: its prompt and the forced tokens so far."""

    def step(self, plan: StepPlan, result: StepResult) -> None:
        self._known.update((admit.request, len(admit.tokens)) for admit in plan.admits)
        chunks = (c.request for c in plan.chunks if c.start + c.count == self._known[c.request])
        for request, token, gap in zip((*plan.decodes, *chunks), result.tokens, result.gaps, strict=True):
            if request < len(self.served):
                self._compare(request, token, gap)
            self._known[request] += 1

    def _compare(self, request: int, token: int, gap: float) -> None:
        """An executor may give back the forced token: then the gap alone tells that another one is better."""
        served = self.served[request]
        position = self._known[request] - len(served.prompt)
        expected = served.tokens[position]
        self.num_compared += 1
        if token != expected or gap > 0:
            found = token if token != expected else None
            self.found.append(Difference(served.request, position, expected, found, gap))

    @property
    def ties(self) -> list[Difference]:
        return [difference for difference in self.found if difference.tie]

    @property
    def differences(self) -> list[Difference]:
        """Those that are no ties."""
        return [difference for difference in self.found if not difference.tie]

    @property
    def missing(self) -> int:
        """Tokens that were served and never compared."""
        return sum(len(s.tokens) for s in self.served) - self.num_compared


def verify(deployment: Deployment, served: Sequence[Served]) -> Verifier:
    """Every greedy request of `served` again, all at once, in the fixed layout, each forced along its tokens.

    Those without a token have nothing to compare. Raises what the engine fails with.
    """
    verifier = Verifier([s for s in served if s.tokens])
    with Engine(deployment.fixed(LAYOUT), on_step=verifier.step, gaps=True) as engine:
        streams = []
        for s in verifier.served:
            params = replace(s.params, max_tokens=len(s.tokens))
            streams.append(engine.submit(s.prompt, params, forced=s.tokens))
        for stream in streams:
            stream.result()
        _look_up(engine, verifier)
        engine.finish()
    return verifier


def _look_up(engine: Engine, verifier: Verifier) -> None:
    """Name the better tokens, by sampling one token behind what was served up to each difference."""
    one = SamplingParams(max_tokens=1, ignore_eos=True)
    by_number = {s.request: s for s in verifier.served}
    for place, difference in enumerate(verifier.found[:MAX_NAMED]):
        if difference.found is None:
            served = by_number[difference.request]
            prompt = served.prompt + served.tokens[: difference.position]
            (found,) = engine.submit(prompt, one).result().token_ids
            verifier.found[place] = replace(difference, found=found)
