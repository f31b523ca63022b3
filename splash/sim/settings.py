"""How a model is deployed on simulated hardware: what the command line can set. Imports nothing, so that help can
say the defaults."""

from __future__ import annotations

from dataclasses import dataclass

COPY_SHARE = 0.5
"""Share of the copy bandwidth that background copies may take, where they run beside the step."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How a model is deployed; what the command line can set."""

    ranks: int = 8
    memory_fraction: float = 0.9
    weights: str = "bfloat16"
    kv: str = "bfloat16"
    request_tokens: int | None = None
    """Of a typical request, over which a recurrent state is shared out; None where there is none."""
    token_budget: int = 8192
    max_running: int = 2048
    reserve: int = 0
    """Bytes of a rank for what is neither weights that are computed here nor KV: a vision tower."""
