"""Workloads by name: `rl-drain`, or with parameters `rl-drain:prompts=64,samples=4`."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import numpy as np

from splash.core.errors import ConfigError, closest
from splash.sim.generators import GENERATORS, Generator
from splash.sim.workload import Workload


def generated(text: str, *, seed: int, rate: float | None = None) -> Workload:
    """The workload that `text` names, drawn from `seed`; `rate` wins over the parameter of that name."""
    name, _, settings = text.partition(":")
    generator = parsed(name, settings)
    if rate is not None:
        generator = _at_rate(generator, name, rate)
    return Workload(
        name, generator.arrivals(np.random.default_rng(seed)), note=f"{described(generator)}, seed={seed}"
    )


def parsed(name: str, settings: str) -> Generator:
    """The generator `name` with parameters as in `prompts=64,samples=4`; ConfigError names a wrong one."""
    kind = GENERATORS[name]
    defaults = {field.name: field.default for field in fields(kind)}
    values: dict[str, float] = {}
    for setting in filter(None, (part.strip() for part in settings.split(","))):
        key, equals, value = (part.strip() for part in setting.partition("="))
        if key not in defaults:
            known = ", ".join(f"{known}={default}" for known, default in defaults.items())
            raise ConfigError(
                f"{name} has no parameter '{key}'{closest(key, defaults)}; it has {known} (--workload)"
            )
        if not equals:
            raise ConfigError(
                f"{name}: parameter {key} has no value; write {key}={defaults[key]} (--workload)"
            )
        if key in values:
            raise ConfigError(f"{name}: parameter {key} is given twice (--workload)")
        values[key] = _number(value, key=key, where=name, whole=isinstance(defaults[key], int))
    try:
        return kind(**values)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error} (--workload)") from None


def described(generator: Generator) -> str:
    """Its parameters as they would be typed."""
    return ",".join(f"{field.name}={getattr(generator, field.name):g}" for field in fields(generator))


def _at_rate(generator: Generator, name: str, rate: float) -> Generator:
    if "rate" not in {field.name for field in fields(generator)}:
        raise ConfigError(f"{name} arrives all at once: it has no rate to set (--rate)")
    try:
        return replace(generator, rate=rate)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error} (--rate)") from None


def _number(text: str, *, key: str, where: str, whole: bool) -> float:
    kind = "a whole number" if whole else "a number"
    try:
        value = int(text) if whole else float(text)
    except ValueError:
        raise ConfigError(f"{where}: {key} is '{text}'; it must be {kind} (--workload)") from None
    if not math.isfinite(value):
        raise ConfigError(f"{where}: {key} is {text}; it must be {kind} (--workload)")
    return value
