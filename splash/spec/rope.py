"""The rotary embedding that a config asks for, from each of the shapes in which configs say it.

Formulas: transformers `modeling_rope_utils.py` (yarn: arXiv 2309.00071; llama3: Llama 3.1).
"""

from __future__ import annotations

import math
from typing import Literal

from splash.core.errors import ConfigError
from splash.spec.fields import Fields
from splash.spec.model import RopeSpec

DEFAULT_THETA = 10_000.0

_KINDS: dict[str, Literal["default", "linear", "yarn", "llama3"]] = {
    "default": "default",
    "mrope": "default",  # positions of text are equal in all its sections
    "dynamic": "default",  # differs beyond max_position_embeddings only, where nothing is served
    "linear": "linear",
    "yarn": "yarn",
    "llama3": "llama3",
}


def read_rope(config: Fields, *, dim: int, interleaved: bool, max_position: int) -> RopeSpec:
    """The rope of `dim` dimensions; ConfigError for a type that is not supported, naming those that are.

    Read from `rope_scaling` (with `type` or `rope_type`) or `rope_parameters` (transformers 5); `rope_theta` may
    lie in it or beside it.
    """
    section = _section(config)
    theta = section.number("rope_theta", default=config.number("rope_theta", default=DEFAULT_THETA))
    name = section.text("rope_type", "type", default="default")
    if name == "default" and section.raw("factor") is not None and section.raw("rope_type", "type") is None:
        raise section.missing("rope_type", "type")
    if name not in _KINDS:
        raise ConfigError(
            f"{section.where}: rope type '{name}' is not supported; supported: {', '.join(_KINDS)}"
        )
    partial = section.number(
        "partial_rotary_factor", default=config.number("partial_rotary_factor", default=1.0)
    )
    if partial != 1.0:
        raise ConfigError(f"{section.where}: partial_rotary_factor {partial} is not supported; only 1.0 is")
    kind = _KINDS[name]
    plain = RopeSpec("default", dim, theta, interleaved)
    if kind == "default" or dim == 0:
        return plain
    original = config.integer(
        "original_max_position_embeddings",
        default=section.integer("original_max_position_embeddings", default=max_position),
    )
    if kind == "linear":
        return RopeSpec(kind, dim, theta, interleaved, factor=section.number("factor"))
    if kind == "llama3":
        return RopeSpec(
            kind,
            dim,
            theta,
            interleaved,
            factor=section.number("factor"),
            original_max_position=original,
            low_freq_factor=section.number("low_freq_factor"),
            high_freq_factor=section.number("high_freq_factor"),
        )
    return _yarn(section, plain, original=original, max_position=max_position)


def yarn_mscale(factor: float, mscale: float) -> float:
    """How much yarn sharpens attention for a context `factor` times as long."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _section(config: Fields) -> Fields:
    """The object that holds the parameters; an empty one if the config has none."""
    section = config.section("rope_scaling") or config.section("rope_parameters")
    if section is None:
        return Fields({}, config.where)
    by_layer_type = section.sections()
    if not by_layer_type:
        return section
    if "full_attention" not in by_layer_type or len(by_layer_type) > 1:
        kinds = ", ".join(by_layer_type)
        raise ConfigError(f"{section.where}: one rope for each layer type ({kinds}) is not supported")
    return by_layer_type["full_attention"]


def _yarn(section: Fields, plain: RopeSpec, *, original: int, max_position: int) -> RopeSpec:
    factor = section.number("factor", default=max_position / original)
    mscale = section.number("mscale", default=0.0)
    mscale_all_dim = section.number("mscale_all_dim", default=0.0)
    attention_factor = section.optional_number("attention_factor")
    if attention_factor is None:
        attention_factor = yarn_mscale(factor, 1.0)
        if mscale and mscale_all_dim:
            attention_factor = yarn_mscale(factor, mscale) / yarn_mscale(factor, mscale_all_dim)
    return RopeSpec(
        "yarn",
        plain.dim,
        plain.theta,
        plain.interleaved,
        factor=factor,
        original_max_position=original,
        beta_fast=section.number("beta_fast", default=0.0) or 32.0,
        beta_slow=section.number("beta_slow", default=0.0) or 1.0,
        mscale=mscale,
        mscale_all_dim=mscale_all_dim,
        attention_factor=attention_factor,
        truncate=section.flag("truncate", default=True),
    )
