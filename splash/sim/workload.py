"""What arrives when, as numbers: the requests of a simulation without their text."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

NANOSECONDS = 1_000_000_000
"""In a second."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request: when it comes, how long its prompt is, and how many tokens it will ask for.

    Open loop: it arrives at `time_ns`, nanoseconds from the start of the run. Closed loop (`after` is set): it arrives
    `delay_ns` after the last token of the request `after`, but not before `time_ns`.
    """

    time_ns: int
    prompt_tokens: int
    output_tokens: int
    session: int | None = None
    """Requests of one conversation; each prompt begins with the context that the one before it ended with."""
    after: int | None = None
    """Index, in the workload, of the request whose end this one waits for."""
    delay_ns: int = 0
    """Thinking, or running a tool, between that end and this arrival."""
    prefix: tuple[int, ...] = ()
    """An id for each leading block of the prompt, equal where blocks are equal; see `Workload.prefix_block`."""
    group: int | None = None
    """Requests of one group are samples of the same prompt."""

    def __post_init__(self) -> None:
        if self.time_ns < 0 or self.delay_ns < 0:
            raise ValueError(f"a request arrives at {self.time_ns} ns, delay {self.delay_ns} ns: not below 0")
        if self.prompt_tokens < 1 or self.output_tokens < 1:
            raise ValueError(
                f"a request has {self.prompt_tokens} prompt and {self.output_tokens} output tokens: at least 1"
            )

    @property
    def time_s(self) -> float:
        return self.time_ns / NANOSECONDS


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests ordered by `time_ns`; one that waits for another comes after it. Both are checked."""

    name: str
    arrivals: tuple[Arrival, ...]
    note: str = ""
    """What a reader of a result should know of it: parameters, or how a file was understood."""
    prefix_block: int = 0
    """Tokens that one id of `Arrival.prefix` stands for; 0 where no request has any."""
    lines: tuple[int, ...] = ()
    """Of a file, one a request; empty where the requests were made up."""

    def __post_init__(self) -> None:
        if not self.arrivals:
            raise ValueError(f"the workload {self.name} has no request")
        last = 0
        for index, arrival in enumerate(self.arrivals):
            if arrival.time_ns < last:
                raise ValueError(f"the workload {self.name} is not in order of time at request {index}")
            if arrival.after is not None and not 0 <= arrival.after < index:
                raise ValueError(
                    f"request {index} of {self.name} waits for {arrival.after}, not one before it"
                )
            last = arrival.time_ns

    def place(self, index: int) -> str:
        """Where a request stands: its file and line, or its number."""
        return f"{self.name}:{self.lines[index]}" if self.lines else f"request {index} of {self.name}"

    @property
    def prompt_tokens(self) -> int:
        return sum(arrival.prompt_tokens for arrival in self.arrivals)

    @property
    def output_tokens(self) -> int:
        return sum(arrival.output_tokens for arrival in self.arrivals)

    @property
    def longest(self) -> int:
        """Tokens of the request that needs most context, prompt and output together."""
        return max(arrival.prompt_tokens + arrival.output_tokens for arrival in self.arrivals)

    @property
    def rate(self) -> float:
        """Requests per second between the first and the last arrival; infinite if all come at once."""
        span_ns = self.arrivals[-1].time_ns - self.arrivals[0].time_ns
        return (len(self.arrivals) - 1) * NANOSECONDS / span_ns if span_ns else math.inf

    def capped(self, output_tokens: int) -> Workload:
        """The same requests, none of which asks for more than that many output tokens."""
        arrivals = (replace(x, output_tokens=min(x.output_tokens, output_tokens)) for x in self.arrivals)
        note = f"{self.note}; at most {output_tokens} output tokens each"
        return replace(self, arrivals=tuple(arrivals), note=note.removeprefix("; "))

    def at_rate(self, rate: float) -> Workload:
        """The same requests, their times stretched or pressed so that `rate` of them come in a second.

        ValueError where all come at once or wait for each other: there is no rate to change.
        """
        if math.isinf(self.rate):
            raise ValueError(f"all requests of {self.name} arrive at once")
        if any(arrival.after is not None for arrival in self.arrivals):
            raise ValueError(f"requests of {self.name} wait for each other")
        factor = self.rate / rate
        arrivals = (replace(x, time_ns=round(x.time_ns * factor)) for x in self.arrivals)
        note = f"{self.note}; times × {factor:.4g} for {rate:g} requests/s"
        return replace(self, arrivals=tuple(arrivals), note=note.removeprefix("; "))


def nanoseconds(seconds: float) -> int:
    """Whole ones, as numpy rounds arrays of them: half to even."""
    return round(seconds * NANOSECONDS)
