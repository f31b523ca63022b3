"""How one request is sampled and when it ends."""

from __future__ import annotations

import math
from dataclasses import dataclass

from splash.core.errors import RequestError

MAX_SEED = 2**63 - 1


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling of one request; `temperature == 0` is greedy.

    A token depends on the logits, on `seed` and on its position only, so batch mates, preemption
    and layout switches do not change a seeded request.
    """

    max_tokens: int = 16
    temperature: float = 0.0
    top_k: int = 0
    """Keep the k most likely tokens; 0 keeps all."""
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    """None: the engine derives one from its own seed and the request id."""
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        _require(self.max_tokens >= 1, f"max_tokens is {self.max_tokens}; it must be at least 1")
        _require(
            math.isfinite(self.temperature) and self.temperature >= 0,
            f"temperature is {self.temperature}; it must be finite and 0 (greedy) or more",
        )
        _require(self.top_k >= 0, f"top_k is {self.top_k}; it must be 0 (off) or more")
        _require(0 < self.top_p <= 1, f"top_p is {self.top_p}; it must be in (0, 1]")
        _require(0 <= self.min_p <= 1, f"min_p is {self.min_p}; it must be in [0, 1]")
        _require(
            self.seed is None or 0 <= self.seed <= MAX_SEED,
            f"seed is {self.seed}; it must be between 0 and {MAX_SEED}",
        )

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise RequestError(message)
