"""What targets are compared by, and how a choice is explained with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from splash.core.config import Objective
from splash.sched.forecast import Outlook, Situation
from splash.sched.policy import Load


@dataclass(frozen=True, slots=True)
class Targets:
    """Seconds within which a good request stays; None: anything."""

    ttft_s: float | None = None
    tpot_s: float | None = None


NO_TARGETS = Targets()


class Score(NamedTuple):
    """Seconds of the work ahead, or what a request feels of it, by parts that add up to what is compared."""

    first: str
    """What is done in `first_s`."""
    first_s: float
    window: float
    """Tokens that are looked ahead, of each request at hand."""
    crowd: float
    """Decode steps for one of these: more than one where not all requests have room."""
    rows: int
    """Of a decode step."""
    step_s: float
    missed: float = 1.0
    """How many times all of it counts because targets are missed."""

    @property
    def seconds(self) -> float:
        return (self.first_s + self.window * self.step_s * self.crowd) * self.missed

    @property
    def steps(self) -> int:
        return round(self.window * self.crowd)

    @classmethod
    def of(cls, found: Outlook, situation: Situation, objective: Objective, targets: Targets) -> Score:
        """By objective: all until the work of the window is done, or what one request waits and decodes."""
        window, rows, step_s = situation.window, found.rows, found.decode_s
        if objective == "throughput":
            return cls("prompts", found.prompt_s, window, found.crowd, rows, step_s)
        wait_s = found.prompt_s + situation.chunks * step_s
        if objective == "latency":
            return cls("first tokens", wait_s * found.crowd, window, 1.0, rows, step_s)
        late = max(0.0, wait_s / targets.ttft_s - 1) if targets.ttft_s else 0.0
        slow = max(0.0, step_s / targets.tpot_s - 1) if targets.tpot_s else 0.0
        return cls("prompts", found.prompt_s, window, found.crowd, rows, step_s, 1 + late + slow)


def explained(new: Score, old: Score) -> str:
    """`57 % less time, 34.4 s instead of 80.8 s: prompts 29.1 s instead of 76.4 s, 64 decode steps of 83.2 ms instead
    of 68.8 ms`: the parts of each add up to its sum."""
    parts = []
    if new.first_s or old.first_s:
        parts.append(f"{new.first} {_time(new.first_s)} instead of {_time(old.first_s)}")
    steps = "" if new.steps == old.steps else f"{old.steps:,} of "
    parts.append(f"{new.steps:,} decode steps of {_time(new.step_s)} instead of {steps}{_time(old.step_s)}")
    if new.rows != old.rows:
        parts[-1] += f" ({new.rows:,} rows a step instead of {old.rows:,})"
    if new.missed > 1 or old.missed > 1:
        parts.append(
            f"all of it {new.missed:.2f} times instead of {old.missed:.2f} for targets that are missed"
        )
    less, sums = (
        _percent(1 - new.seconds / old.seconds),
        f"{_time(new.seconds)} instead of {_time(old.seconds)}",
    )
    return f"{less} less time, {sums}: {', '.join(parts)}"


def worked(load: Load) -> str:
    """What is at hand."""
    return f"{load.running:,} running, {len(load.waiting):,} waiting, mean context {load.mean_context:,}"


def moved(num_bytes: float, peak: float) -> str:
    """What a change copies to each rank, and how full its room for KV is meanwhile (0: nothing is held twice)."""
    if not num_bytes:
        return "nothing to copy"
    unit, name = next((u, n) for u, n in UNITS if num_bytes >= u / 10 or u == 1e3)
    copies = f"{num_bytes / unit:.2g} {name} to each rank"
    return f"{copies}, whose room is {_percent(peak)} full at the peak" if peak else copies


UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def _time(seconds: float) -> str:
    """Of three figures."""
    value, unit = (seconds * 1e3, "ms") if seconds < 0.9995 else (seconds, "s")
    return f"{value:,.0f} {unit}" if value >= 999.5 else f"{value:#.3g}".rstrip(".") + f" {unit}"


def _percent(share: float) -> str:
    percent = 100 * share
    return f"{percent:.0f} %" if percent >= 9.95 else f"{percent:.2g} %"
