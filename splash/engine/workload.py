"""What arrives when: named, seeded workloads for the demo model, and those in files."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from splash.core.errors import ConfigError, closest
from splash.engine.items import Item, When
from splash.engine.plays import opening, scene
from splash.engine.workload_file import check_start, read_workload
from splash.sim.generators import GENERATORS
from splash.sim.traces import load
from splash.sim.workload import Workload


def load_workload(name: str, *, seed: int) -> list[Item]:
    """A workload by name or from a file."""
    if name in WORKLOADS:
        return WORKLOADS[name](random.Random(seed))
    path = Path(name)
    if path.suffix or path.is_file() or "/" in name:
        return read_workload(path)
    simulated = name.partition(":")[0] in GENERATORS
    raise ConfigError(
        f"unknown workload '{name}'{' (it is for simulated hardware)' if simulated else closest(name, WORKLOADS)};"
        f" known: {', '.join(WORKLOADS)}, or a file of JSON lines or a trace (--workload)"
    )


def load_lengths(name: str, *, seed: int, rate: float | None = None) -> Workload:
    """A workload of lengths alone, as `splash.sim.traces.load` has it, for what computes no token."""
    file = Path(name)
    if name.partition(":")[0] not in GENERATORS and file.is_file():
        with suppress(OSError, UnicodeDecodeError), file.open(encoding="utf-8-sig") as lines:
            check_start(lines, file, "lengths")
    return load(name, seed=seed, rate=rate)


def _burst(rng: random.Random) -> list[Item]:
    """48 short requests at once."""
    return [_item(opening(rng), rng.randint(24, 64)) for _ in range(48)]


def _long(rng: random.Random) -> list[Item]:
    """Two long prompts, one after the other, with short answers."""
    return [
        _item(scene(rng, 6000), 96),
        _item(scene(rng, 9000), 96, step=60),
    ]


def _steady(rng: random.Random) -> list[Item]:
    """A request of medium length every twelve steps."""
    return [_item(opening(rng), rng.randint(80, 160), step=12 * i) for i in range(40)]


def _default(rng: random.Random) -> list[Item]:
    """A burst of many short requests that drains to a few long ones, then long prompts, one after the other; twice.

    Arrivals are by step, so the same layouts are visited on a slow machine as on a fast one.
    """
    items: list[Item] = []
    for start in (0, 2000):
        items += [_item(opening(rng), _drain_length(rng), step=start + i // 4) for i in range(56)]
        items += [_item(opening(rng), rng.randint(1400, 1600), step=start + 14) for _ in range(2)]
        items += [_item(scene(rng, 12000), rng.randint(8, 16), step=start + 1000 + 8 * i) for i in range(6)]
    return items


def _item(prompt: str, max_tokens: int, *, step: int = 0) -> Item:
    return Item(prompt, max_tokens, When(step=step), ignore_eos=True, elastic=True)


def _drain_length(rng: random.Random) -> int:
    """Mostly short, with a tail: the load falls by and by."""
    return min(600, 60 + int(rng.expovariate(1 / 120)))


DEFAULT = "default"
WORKLOADS: dict[str, Callable[[random.Random], list[Item]]] = {
    DEFAULT: _default,
    "burst": _burst,
    "long": _long,
    "steady": _steady,
}
