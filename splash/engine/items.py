"""The requests of a workload, and what one becomes for a model."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from splash.core.params import SamplingParams
from splash.core.request import check_prompt


@dataclass(frozen=True, slots=True)
class When:
    """Due at the boundary before step `step`, and not before `time_s` on the engine's clock.

    A step that never comes because nothing is left to do counts as come.
    """

    step: int = 0
    time_s: float = 0.0


@dataclass(frozen=True, slots=True)
class MadeUp:
    """A prompt of random tokens: of a trace only lengths are known. `key` tells it from the others."""

    num_tokens: int
    key: str


@dataclass(frozen=True, slots=True)
class Item:
    """One request of a workload: a prompt as text, as token ids, or to be made up. None: the run's own setting."""

    prompt: str | tuple[int, ...] | MadeUp
    max_tokens: int | None = None
    when: When = When()
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    stop_token_ids: tuple[int, ...] | None = None
    ignore_eos: bool | None = None
    elastic: bool = False
    """Cut to the model's limits instead of refused (named workloads)."""
    place: str = ""
    """File and line, of one that has them."""


PARAMETERS = ("temperature", "top_k", "top_p", "min_p", "seed", "stop_token_ids", "ignore_eos")
"""The sampling parameters that an item can set for itself."""


@dataclass(frozen=True, slots=True)
class Job:
    """An item made ready for one model."""

    prompt: tuple[int, ...]
    params: SamplingParams
    when: When


def ready(
    item: Item, *, token_ids: Callable[[str | MadeUp], tuple[int, ...]], defaults: SamplingParams, limit: int
) -> Job:
    """Tokenised by `token_ids`, with `defaults` where the item does not say. Without a `max_tokens` of its own
    it gets the default, or what the limit leaves. RequestError as of `SamplingParams`."""
    if isinstance(item.prompt, MadeUp):
        check_prompt(item.prompt.num_tokens, limit)
    prompt = item.prompt if isinstance(item.prompt, tuple) else token_ids(item.prompt)
    max_tokens = item.max_tokens
    if max_tokens is None:
        max_tokens = max(1, min(defaults.max_tokens, limit - len(prompt)))
    if item.elastic:
        prompt, max_tokens = fitted(prompt, max_tokens, limit)
    own = {name: getattr(item, name) for name in PARAMETERS if getattr(item, name) is not None}
    return Job(prompt, replace(defaults, max_tokens=max_tokens, **own), item.when)


def fitted(prompt: tuple[int, ...], max_tokens: int, limit: int) -> tuple[tuple[int, ...], int]:
    """Prompt and output of an elastic item for a model of `limit` tokens: at most 3/4 for the prompt (its end
    is kept), and the rest for the output."""
    prompt = prompt[-max(1, limit * 3 // 4) :]
    return prompt, max(1, min(max_tokens, limit - len(prompt)))


def ids_for(prompt: str | MadeUp, *, seed: int, vocab_size: int) -> tuple[int, ...]:
    """Random token ids: as many as are to be made up, or, for a checkpoint without a tokenizer, about as many as a text
    would have."""
    if isinstance(prompt, str):
        prompt = MadeUp(max(1, len(prompt) // 3), prompt)
    rng = random.Random(f"{seed} {prompt.key}")
    return tuple(rng.randrange(vocab_size) for _ in range(prompt.num_tokens))
