"""Seeded workloads. Each is a value of its parameters, with the distribution that it draws from in its docstring."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from splash.core.errors import ConfigError
from splash.sim.lengths import (
    CHAT_OUTPUT,
    CHAT_PROMPT,
    MATHS_PROMPT,
    REASONING_OUTPUT,
    Lengths,
    Lognormal,
    LogUniform,
    correlated_scores,
)
from splash.sim.workload import Arrival, nanoseconds

Times = NDArray[np.float64]
"""Seconds, ascending."""


class Generator(Protocol):
    """A frozen dataclass whose fields are the parameters that a user can set, checked when it is built (ConfigError).

    `rate` is one of them unless all requests come at once.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def arrivals(self, rng: np.random.Generator) -> tuple[Arrival, ...]:
        """Ordered as `Workload` wants them."""
        ...


LIMITS: dict[str, tuple[float, float]] = {
    "burst_s": (0, 1e6),
    "burst_share": (0, 1),
    "cap": (1, 2**24),
    "chat_s": (0, 1e7),
    "count": (0, 10**7),
    "duration_s": (1e-3, 1e7),
    "every_s": (1e-3, 1e7),
    "gap_s": (0, 1e7),
    "growth": (1, 1e6),
    "long_s": (0, 1e7),
    "long_share": (0, 1),
    "longest": (2, 2**24),
    "output_mean": (1, 1e6),
    "output_sd": (0, 1e6),
    "prompt_mean": (1, 1e6),
    "prompt_sd": (0, 1e6),
    "prompts": (1, 10**6),
    "rate": (1e-6, 1e6),
    "rho": (0, 1),
    "samples": (1, 10**4),
    "sessions": (1, 10**6),
    "think_s": (0, 1e6),
    "turns": (1, 10**4),
}
"""The least and the most that a parameter may be, both included."""


class _Checked:
    """Compares the parameters with their limits when a workload's value is built."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]
            value, (least, most) = getattr(self, field.name), LIMITS[field.name]
            if not least <= value <= most:  # false for NaN too
                raise ConfigError(
                    f"{field.name} is {value:,.12g}; it must be from {least:,.12g} to {most:,.12g}"
                )


@dataclass(frozen=True, slots=True)
class RlDrain(_Checked):
    """A batch of RL rollouts: `prompts` × `samples` at once, draining to a few very long ones.

    Prompt lengths: lognormal, mean 141, sd 61, one for all samples of a prompt. Output lengths: heavy-tailed
    (p50 1,014, p90 5,423, p99 15,063, longest 32,768), correlated within a prompt by a Gaussian copula with `rho`;
    `cap` cuts them.
    """

    prompts: int = 256
    samples: int = 8
    rho: float = 0.92
    cap: int = 32768

    def arrivals(self, rng: np.random.Generator) -> tuple[Arrival, ...]:
        return tuple(_rollouts(rng, self, time_s=0.0))


@dataclass(frozen=True, slots=True)
class Steady(_Checked):
    """Chats by a Poisson process: exponential gaps, `rate` a second, for `duration_s` or, if given, `count` requests.

    Prompt and output lengths are lognormal with the given means and standard deviations, independent of each other;
    the defaults are those of the Azure conversation trace.
    """

    rate: float = 4.0
    duration_s: float = 600.0
    count: int = 0
    prompt_mean: float = CHAT_PROMPT.mean
    prompt_sd: float = CHAT_PROMPT.sd
    output_mean: float = CHAT_OUTPUT.mean
    output_sd: float = CHAT_OUTPUT.sd

    def arrivals(self, rng: np.random.Generator) -> tuple[Arrival, ...]:
        times = _poisson(rng, rate=self.rate, duration_s=self.duration_s, count=self.count)
        prompts = Lognormal(self.prompt_mean, self.prompt_sd).draw(rng, len(times))
        outputs = Lognormal(self.output_mean, self.output_sd).draw(rng, len(times))
        return tuple(_requests(times, prompts, outputs))


@dataclass(frozen=True, slots=True)
class Burst(_Checked):
    """Chats, most of them in bursts over a quiet background; `rate` is the mean over everything.

    Background: Poisson with (1 − `burst_share`) of the rate. A burst every `every_s` seconds, the first after half of
    that: a Poisson number of requests (mean `rate` × `every_s` × `burst_share`), uniform over `burst_s` seconds.
    Lengths as in `steady`.
    """

    rate: float = 4.0
    duration_s: float = 600.0
    burst_share: float = 0.8
    every_s: float = 60.0
    burst_s: float = 2.0

    def arrivals(self, rng: np.random.Generator) -> tuple[Arrival, ...]:
        quiet = self.rate * (1 - self.burst_share)
        background = _poisson(rng, rate=quiet, duration_s=self.duration_s) if quiet else np.empty(0)
        starts = np.arange(self.every_s / 2, self.duration_s, self.every_s)
        sizes = rng.poisson(self.rate * self.every_s * self.burst_share, len(starts))
        bursts = np.repeat(starts, sizes) + rng.uniform(0, self.burst_s, int(sizes.sum()))
        return tuple(_chats(rng, np.sort(np.concatenate((background, bursts)))))


@dataclass(frozen=True, slots=True)
class PhaseShift(_Checked):
    """Chat, then long prompts, then one RL batch: three loads that want three layouts.

    0 to `chat_s`: chats as in `steady` at `rate`. The next `long_s` seconds: Poisson at 0.3 × `rate`, of which a share
    of `long_share` has a prompt log-uniform over 32 K to `longest` tokens and the rest are chats. `gap_s` later the
    batch of `rl-drain`, `prompts` × `samples`.
    """

    rate: float = 5.5
    chat_s: float = 600.0
    long_s: float = 300.0
    long_share: float = 0.165
    longest: int = 131072
    gap_s: float = 60.0
    prompts: int = 256
    samples: int = 8

    def arrivals(self, rng: np.random.Generator) -> tuple[Arrival, ...]:
        chat = _poisson(rng, rate=self.rate, duration_s=self.chat_s)
        long = self.chat_s + _poisson(rng, rate=0.3 * self.rate, duration_s=self.long_s)
        batch_s = self.chat_s + self.long_s + self.gap_s
        rollouts = _rollouts(rng, RlDrain(self.prompts, self.samples), time_s=batch_s)
        mixed = _mixed(rng, long, share=self.long_share, long_prompt=_long_prompt(self.longest))
        return (*_chats(rng, chat), *mixed, *rollouts)


@dataclass(frozen=True, slots=True)
class LongMixed(_Checked):
    """Short chats with long prompts among them: Poisson at `rate`; a share of `long_share` has a prompt log-uniform
    over 32 K to `longest` tokens, the rest and all outputs are as in `steady`."""

    rate: float = 2.0
    duration_s: float = 600.0
    count: int = 0
    long_share: float = 0.05
    longest: int = 262144

    def arrivals(self, rng: np.random.Generator) -> tuple[Arrival, ...]:
        times = _poisson(rng, rate=self.rate, duration_s=self.duration_s, count=self.count)
        return tuple(_mixed(rng, times, share=self.long_share, long_prompt=_long_prompt(self.longest)))


@dataclass(frozen=True, slots=True)
class Agentic(_Checked):
    """Closed loop: `sessions` agents, each of which asks again when a tool has worked on the answer before.

    Sessions start by a Poisson process, `rate` a second. One has a geometric number of turns with mean `turns`. The
    first prompt is lognormal, mean 1,800, sd 720; each later one is all that was said before and a lognormal addition
    of mean `growth`, sd 2 × `growth`, and a session ends before `longest` tokens. Outputs: lognormal, mean 113, sd 56.
    Tool time: exponential, mean `think_s`. The figures are those of 20 mini-swe-agent sessions (LMCache's agent
    traces), where one turn follows the other 1.2 s later, the request's own time included.
    """

    sessions: int = 64
    rate: float = 0.5
    turns: float = 20.0
    growth: float = 250.0
    think_s: float = 1.0
    longest: int = 131072

    def arrivals(self, rng: np.random.Generator) -> tuple[Arrival, ...]:
        starts = _poisson(rng, rate=self.rate, count=self.sessions)
        found: list[Arrival] = []
        for session, start_s in enumerate(starts):
            found += self._session(rng, session=session, start_s=float(start_s), first=len(found))
        return tuple(found)

    def _session(
        self, rng: np.random.Generator, *, session: int, start_s: float, first: int
    ) -> Iterator[Arrival]:
        """Its turns, numbered from `first`. All carry its start as their earliest time."""
        count = int(rng.geometric(1 / self.turns))
        added = Lognormal(self.growth, 2 * self.growth).draw(rng, count)
        added[0] = min(self.longest // 2, int(Lognormal(1800, 720).draw(rng, 1)[0]))
        outputs = Lognormal(113, 56).draw(rng, count)
        waits = rng.exponential(self.think_s, count)
        context = 0
        for turn in range(count):
            prompt = context + int(added[turn])
            output = int(outputs[turn])
            context = prompt + output
            if turn and context > self.longest:
                return
            yield Arrival(
                nanoseconds(start_s),
                prompt,
                output,
                session=session,
                after=first + turn - 1 if turn else None,
                delay_ns=nanoseconds(waits[turn]) if turn else 0,
            )


GENERATORS: dict[str, type[Generator]] = {
    "rl-drain": RlDrain,
    "burst": Burst,
    "phase-shift": PhaseShift,
    "long-mixed": LongMixed,
    "steady": Steady,
    "agentic": Agentic,
}


# ---- what they are made of


def _poisson(rng: np.random.Generator, *, rate: float, duration_s: float = 0.0, count: int = 0) -> Times:
    """Arrival times at `rate` a second: `count` of them, or those within `duration_s` (at least one)."""
    if count:
        return np.cumsum(rng.exponential(1 / rate, count))
    # Given their number, the times of a Poisson process are uniform.
    return np.sort(rng.uniform(0, duration_s, max(1, rng.poisson(rate * duration_s))))


def _rollouts(rng: np.random.Generator, batch: RlDrain, *, time_s: float) -> Iterator[Arrival]:
    """All at `time_s`, prompt by prompt."""
    prompts = MATHS_PROMPT.draw(rng, batch.prompts)
    scores = correlated_scores(rng, groups=batch.prompts, samples=batch.samples, rho=batch.rho)
    outputs = np.minimum(REASONING_OUTPUT.at(scores), batch.cap)
    for group in range(batch.prompts):
        for output in outputs[group]:
            yield Arrival(nanoseconds(time_s), int(prompts[group]), int(output), group=group)


def _chats(rng: np.random.Generator, times: Times) -> Iterator[Arrival]:
    return _requests(times, CHAT_PROMPT.draw(rng, len(times)), CHAT_OUTPUT.draw(rng, len(times)))


def _mixed(
    rng: np.random.Generator, times: Times, *, share: float, long_prompt: LogUniform
) -> Iterator[Arrival]:
    """Chats, of which each has a long prompt with the probability `share`."""
    is_long = rng.random(len(times)) < share
    prompts = np.where(is_long, long_prompt.draw(rng, len(times)), CHAT_PROMPT.draw(rng, len(times)))
    return _requests(times, prompts, CHAT_OUTPUT.draw(rng, len(times)))


def _long_prompt(longest: int) -> LogUniform:
    return LogUniform(min(32768, longest), longest)


def _requests(times: Times, prompts: Lengths, outputs: Lengths) -> Iterator[Arrival]:
    for time_s, prompt, output in zip(times, prompts, outputs, strict=True):
        yield Arrival(nanoseconds(time_s), int(prompt), int(output))
