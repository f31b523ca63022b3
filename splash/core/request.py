"""A request as a client hands it in, already tokenised and validated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from splash.core.params import SamplingParams

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class Request:
    """`prompt` holds at least one token id; `arrival_s` is the engine clock's time of arrival, seconds."""

    id: int
    prompt: tuple[int, ...]
    params: SamplingParams
    arrival_s: float = 0.0
