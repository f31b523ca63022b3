"""The fewest ranks that carry a rate of requests in time.

The model of the queue. Requests come at R a second, each with P prompt tokens and O output tokens; one layout serves
them all the time. A step that decodes B requests, each in the middle of its output (P + O / 2 tokens of context), takes
`decode_s(B)`. A prompt is in one step, or in several whose token budget it fills beside the decodes. Short prompts
share a step: as many as come while it runs, k, up to the K that the budget holds. With S seconds of the steps that a
prompt is in, decodes included, and D of them without prompts, a prompt takes (S − D) / k from the decodes, so that
their steps follow each other every

    τ = decode_s(B) / (1 − R (S − D) / k)

and by Little's law B = R · O · τ requests decode at a time. B is the least fixed point of this, rounded up to whole
requests; there may be none up to the requests that may run. TPOT is τ. TTFT is half a step, the wait for the
prompts before, and S. The wait is that of an M/D/1 queue, u · S / 2 (1 − u), used to u = R · S / K with the S of K
prompts in a step. Both are means. KV must hold B requests and those whose prompts are under way, all of full length,
P + O tokens.

The token budget and the requests that may run are a deployment's settings for eight ranks; more ranks have more of
both, in proportion. What the model leaves out: bursts beyond Poisson's, differing lengths, switches, prefix caches,
and several deployments side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from math import ceil, inf

from splash.core.errors import ConfigError
from splash.layout.layouts import LAYOUTS, Layout
from splash.sim.even import together
from splash.sim.planner import Plan
from splash.sim.presets import RANKS

PROMPT_TOKENS = 1024
OUTPUT_TOKENS = 512
MOST_RANKS = 64
TRICKLE = 1e-3
"""Of the rate asked for: less than that is nothing."""
CLOSE = 1.02
"""Rates that differ by less are the same."""


class Limit(Enum):
    """What a layout fails at."""

    WEIGHTS = "the weights do not fit"
    LENGTH = "the requests are longer than the model knows"
    WORK = "prompts arrive faster than they are done"
    RUNNING = "more requests at once than may run"
    MEMORY = "KV does not hold the requests"
    TTFT = "the first token comes too late"
    TPOT = "tokens come too slowly"


@dataclass(frozen=True, slots=True)
class Traffic:
    """What is asked for."""

    rate: float
    """Requests per second."""
    prompt_tokens: int = PROMPT_TOKENS
    output_tokens: int = OUTPUT_TOKENS
    ttft_s: float | None = None
    tpot_s: float | None = None
    """Means that are to be kept; None: anything."""

    def __post_init__(self) -> None:
        for option, value in (
            ("--target-rate", self.rate),
            ("--prompt-tokens", self.prompt_tokens),
            ("--output-tokens", self.output_tokens),
            ("--ttft", self.ttft_s),
            ("--tpot", self.tpot_s),
        ):
            if value is not None and not 0 < value < inf:
                raise ConfigError(f"{option} is {value:g}; it must be a positive number")

    @property
    def tokens(self) -> int:
        """Of a whole request."""
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class Service:
    """How one layout carries the traffic; figures are those of the steady state, None where there is none."""

    layout: str
    limit: Limit | None
    """What it fails at; None: it does it."""
    running: int | None = None
    """Requests that decode at a time."""
    ttft_s: float | None = None
    tpot_s: float | None = None
    prompt_share: float | None = None
    """Of all time."""

    @property
    def limit_said(self) -> str:
        return "" if self.limit is None else self.limit.value


@dataclass(frozen=True, slots=True)
class Answer:
    """What was tried, by ranks, ascending: up to the first number that does it."""

    traffic: Traffic
    tried: Mapping[int, tuple[Service, ...]]
    most: float | None
    """If none does it, the highest rate that any of them carries; None: not even a thousandth of what was asked."""
    most_ranks: int | None
    """That carry it; with so little, those that come nearest."""
    most_service: Service | None
    """The layout, with its figures at that rate; None if none has any."""

    @property
    def ranks(self) -> int | None:
        """The fewest that do it; None if none does."""
        return next((ranks for ranks, services in self.tried.items() if _best(services)), None)

    @property
    def service(self) -> Service | None:
        """The best layout there: the lowest TPOT."""
        return None if self.ranks is None else _best(self.tried[self.ranks])


def fewest_ranks(plan: Plan, traffic: Traffic, ranks: Iterable[int]) -> Answer:
    """The fewest of `ranks` that carry the traffic, whatever number the plan has; or how far they get."""
    tried: dict[int, tuple[Service, ...]] = {}
    plans = [with_ranks(plan, n) for n in sorted(ranks)]
    if not plans:
        raise ConfigError(f"{plan.model} cannot be divided over so few ranks")
    for candidate in plans:
        services = tuple(serve(candidate, layout, traffic) for layout in LAYOUTS.values())
        tried[candidate.settings.ranks] = services
        if _best(services):
            return Answer(traffic, tried, None, None, None)
    return _failure(traffic, tried, plans)


def with_ranks(plan: Plan, ranks: int) -> Plan:
    """The plan on another number of ranks, whose steps grow with them."""
    settings, more = plan.settings, max(1.0, ranks / RANKS)
    return replace(
        plan,
        settings=replace(
            settings,
            ranks=ranks,
            token_budget=round(settings.token_budget * more),
            max_running=round(settings.max_running * more),
        ),
    )


def serve(plan: Plan, layout: Layout, traffic: Traffic) -> Service:
    """What the plan's ranks make of the traffic under one layout."""
    return _serve(_Steps(plan, layout, traffic.prompt_tokens, traffic.output_tokens), traffic)


def _serve(steps: _Steps, traffic: Traffic) -> Service:
    plan, layout = steps.plan, steps.layout
    if traffic.tokens > plan.spec.max_position:
        return Service(layout.name, Limit.LENGTH)
    if not plan.fits:
        return Service(layout.name, Limit.WEIGHTS)
    most, allowed = steps.most_held, plan.settings.max_running
    queue = _Queue(steps, traffic)
    running = queue.running(at_most=min(most, allowed))
    if running is None:
        return Service(layout.name, queue.why_not(most, allowed))
    service = Service(
        layout.name,
        None,
        running,
        queue.ttft_s(running),
        queue.period_s(running),
        queue.prompt_share(running),
    )
    under_way = ceil(traffic.rate * queue.prompt_steps_s(running))
    return replace(service, limit=_limit(service, running + under_way > most, traffic))


def _limit(service: Service, is_full: bool, traffic: Traffic) -> Limit | None:
    assert service.ttft_s is not None
    assert service.tpot_s is not None
    if is_full:
        return Limit.MEMORY
    if service.ttft_s == inf:
        return Limit.WORK
    if traffic.tpot_s is not None and service.tpot_s > traffic.tpot_s:
        return Limit.TPOT
    if traffic.ttft_s is not None and service.ttft_s > traffic.ttft_s:
        return Limit.TTFT
    return None


class _Steps:
    """What steps with requests of one kind take, by how many decode in them; each computed once."""

    def __init__(self, plan: Plan, layout: Layout, prompt_tokens: int, output_tokens: int) -> None:
        self.plan = plan
        self.layout = layout
        self._prompt_tokens = prompt_tokens
        self._context = prompt_tokens + output_tokens / 2
        self._tokens = prompt_tokens + output_tokens
        self._known: dict[tuple[int, int], float] = {}

    @cached_property
    def most_held(self) -> int:
        """Whole requests that KV holds, or one more than may run."""
        plan = self.plan
        return plan.memory.most_requests(self.layout, plan.topo, self._tokens, plan.settings.max_running + 1)

    def decode_s(self, running: int) -> float:
        return self._seconds(running, 0)

    def prompt_steps_s(self, running: int, sharing: int) -> float:
        """All of the steps that each of `sharing` prompts is in."""
        return self._chunks(running) * self._seconds(running, sharing)

    def prompt_s(self, running: int, sharing: int) -> float:
        """What one of `sharing` prompts adds to the steps that they are in."""
        added = self._seconds(running, sharing) - self.decode_s(running)
        return self._chunks(running) * max(0.0, added) / sharing

    def most_sharing(self, running: int) -> int:
        """Prompts that a step's budget holds."""
        return max(1, self._room(running) // self._prompt_tokens)

    def sharing(self, running: int, rate: float) -> int:
        """Prompts that come, at `rate`, while a step with as many of them runs."""
        most, sharing = self.most_sharing(running), 1
        while sharing < most and rate * self._seconds(running, sharing) > sharing:
            sharing = min(most, ceil(rate * self._seconds(running, sharing)))
        return sharing

    def _seconds(self, running: int, prompts: int) -> float:
        """Of a step of decodes, and chunks of `prompts` prompts, half of whose other chunks are done."""
        if (running, prompts) not in self._known:
            even, count = self.plan.even, min(self._prompt_tokens, self._room(running))
            chunks = even.chunks(self.layout, prompts, (self._prompt_tokens - count) // 2, count)
            work = together(even.decodes(self.layout, running, self._context), chunks)
            self._known[running, prompts] = self.plan.cost.step_s(work)
        return self._known[running, prompts]

    def _chunks(self, running: int) -> int:
        return ceil(self._prompt_tokens / self._room(running))

    def _room(self, running: int) -> int:
        """Prompt rows of a step."""
        return max(1, self.plan.settings.token_budget - running)


class _Queue:
    """The steady state, by the number of requests that decode."""

    def __init__(self, steps: _Steps, traffic: Traffic) -> None:
        self._steps = steps
        self._rate = traffic.rate
        self._tokens_per_s = traffic.rate * traffic.output_tokens

    def running(self, *, at_most: int) -> int | None:
        """The least number that Little's law sustains, up to `at_most`; None if there is none.

        R · O · τ grows with B, so what it says of too few is too few as well: going on from there finds the least.
        """
        running = 1
        while running <= at_most:
            wanted = self._tokens_per_s * self.period_s(running)
            if wanted <= running:
                return running
            running = at_most + 1 if wanted > at_most else ceil(wanted)
        return None

    def why_not(self, held: int, allowed: int) -> Limit:
        """What to say when there is no steady state with the requests that are held and allowed."""
        if held <= allowed and self.running(at_most=allowed) is not None:
            return Limit.MEMORY
        return Limit.WORK if self.period_s(allowed) == inf else Limit.RUNNING

    def period_s(self, running: int) -> float:
        """τ; infinite where prompts alone take all time."""
        left = 1 - self.prompt_share(running)
        return self._steps.decode_s(running) / left if left > 0 else inf

    def prompt_share(self, running: int) -> float:
        """Of all time, what prompts take."""
        return self._rate * self._steps.prompt_s(running, self._steps.sharing(running, self._rate))

    def prompt_steps_s(self, running: int) -> float:
        return self._steps.prompt_steps_s(running, self._steps.sharing(running, self._rate))

    def ttft_s(self, running: int) -> float:
        most = self._steps.most_sharing(running)
        used = self._rate * self._steps.prompt_steps_s(running, most) / most
        if used >= 1:
            return inf
        steps_s = self.prompt_steps_s(running)
        return self.period_s(running) / 2 + used * steps_s / (2 * (1 - used)) + steps_s


def _best(services: Iterable[Service]) -> Service | None:
    able = [service for service in services if service.limit is None]
    return min(able, key=lambda service: service.tpot_s or 0.0, default=None)


def _failure(traffic: Traffic, tried: Mapping[int, tuple[Service, ...]], plans: list[Plan]) -> Answer:
    """How far the ranks get: the highest rate of any, to two percent, and the ranks and the layout with it."""
    best: tuple[float, int, Service] | None = None
    nearest: tuple[float, int, Service] | None = None
    trickle = replace(traffic, rate=TRICKLE * traffic.rate)
    for plan in reversed(plans):  # who carries most comes first: others have to beat it
        for layout in LAYOUTS.values():
            steps = _Steps(plan, layout, traffic.prompt_tokens, traffic.output_tokens)

            def carried(rate: float, steps: _Steps = steps) -> bool:
                return _serve(steps, replace(traffic, rate=rate)).limit is None

            rate = _highest_rate(carried, above=best[0] if best else 0.0, below=traffic.rate)
            if rate is not None:
                best = rate, plan.settings.ranks, _serve(steps, replace(traffic, rate=rate))
            service = _serve(steps, trickle)
            miss = _miss(service, traffic)
            if nearest is None or miss < nearest[0]:
                nearest = miss, plan.settings.ranks, service
    if best is not None:
        return Answer(traffic, tried, *best)
    if nearest is None or nearest[0] == inf:
        return Answer(traffic, tried, None, None, None)
    return Answer(traffic, tried, None, *nearest[1:])


def _miss(service: Service, traffic: Traffic) -> float:
    """By which factor it misses a target, the one that it misses more."""
    if service.ttft_s is None or service.tpot_s is None:
        return inf
    pairs = (service.ttft_s, traffic.ttft_s), (service.tpot_s, traffic.tpot_s)
    return max((figure / target for figure, target in pairs if target is not None), default=inf)


def _highest_rate(carried: Callable[[float], bool], *, above: float, below: float) -> float | None:
    """To `CLOSE`; None if it is not that much above `above`, or less than `TRICKLE` of `below`."""
    low = max(CLOSE * above, TRICKLE * below)
    if not carried(low):
        return None
    high = below
    while high > CLOSE * low:
        middle = (low + high) / 2
        low, high = (middle, high) if carried(middle) else (low, middle)
    return low
