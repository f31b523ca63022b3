"""A request as a client hands it in, already tokenised and validated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from splash.core.errors import RequestError
from splash.core.params import SamplingParams

FinishReason = Literal["stop", "length", "abort"]


def check_prompt(num_prompt: int, limit: int) -> None:
    """RequestError if no token fits behind the prompt in `limit` tokens."""
    if num_prompt >= limit:
        raise RequestError(
            f"the prompt has {num_prompt} tokens, the limit of prompt and output together is {limit}:"
            f" at most {limit - 1} prompt tokens leave room for one",
            remedy="--max-model-len sets the limit, up to the model's own",
        )


@dataclass(frozen=True, slots=True)
class Request:
    """`prompt` holds at least one token id; `arrival_s` is the engine clock's time of arrival, seconds."""

    id: int
    prompt: tuple[int, ...]
    params: SamplingParams
    arrival_s: float = 0.0
