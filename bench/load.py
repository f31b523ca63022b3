"""Requests and engines as the measurements want them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from splash.core.config import EngineConfig, SchedulerConfig
from splash.core.events import Event, EventSink, StepDone, SwitchDone
from splash.engine.client import Engine
from splash.engine.deployment import open_deployment


def random_prompts(count: int, length: int, *, vocab_size: int, seed: int) -> list[tuple[int, ...]]:
    """`count` prompts of `length` random token ids (0 and 1 are special tokens and left out)."""
    rng = random.Random(seed)
    return [tuple(rng.randrange(2, vocab_size) for _ in range(length)) for _ in range(count)]


def open_engine(
    folder: Path,
    *,
    ranks: int = 2,
    layout: str = "tp",
    sinks: Sequence[EventSink] = (),
    kv_pages: int | None = None,
    **scheduler: Any,
) -> Engine:
    """An engine in one layout, without a policy."""
    config = EngineConfig(
        ranks=ranks, layout=layout, kv_pages=kv_pages, scheduler=SchedulerConfig(**scheduler)
    )
    return Engine(open_deployment(folder, config), sinks=sinks)


class Recorder:
    """A sink that keeps steps and switches."""

    def __init__(self) -> None:
        self.steps: list[StepDone] = []
        self.switches: list[SwitchDone] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, StepDone):
            self.steps.append(event)
        elif isinstance(event, SwitchDone):
            self.switches.append(event)

    def clear(self) -> None:
        self.steps.clear()
        self.switches.clear()


def decode_rows(steps: Sequence[StepDone], count: int, layout: str | None = None) -> list[StepDone]:
    """The steps in which exactly `count` requests decoded (in `layout` only), without a prompt chunk."""
    return [
        s
        for s in steps
        if s.decode_rows == count
        and not s.prefill_rows
        and (layout is None or {name for name, rows in s.rows_by_layout.items() if rows} == {layout})
    ]
