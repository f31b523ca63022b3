"""generation_config.json: when a model's makers end its text, and how they sample it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from splash.spec.config import token_ids
from splash.spec.fields import Fields


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """What a request gets that does not say otherwise. Without a file: greedy, and nothing set."""

    eos_token_ids: tuple[int, ...] = ()
    """Empty: those of config.json hold."""
    temperature: float = 0.0
    """0 where `do_sample` is false or absent, as transformers has it."""
    top_k: int = 0
    """0 keeps all."""
    top_p: float = 1.0
    min_p: float = 0.0


def read_generation(
    config: Mapping[str, Any], *, where: str = "generation_config.json"
) -> GenerationDefaults:
    """The defaults of a parsed generation_config.json; ConfigError names a value of the wrong type."""
    fields = Fields(config, where)
    eos = token_ids(fields, "eos_token_id")
    if not fields.flag("do_sample", default=False):
        return GenerationDefaults(eos_token_ids=eos)
    return GenerationDefaults(
        eos_token_ids=eos,
        temperature=fields.number("temperature", default=1.0),
        top_k=fields.integer("top_k", default=0, minimum=0),
        top_p=fields.number("top_p", default=1.0),
        min_p=fields.number("min_p", default=0.0),
    )
