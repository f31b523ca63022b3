"""How long the work at hand would take under a target."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from splash.layout.layouts import Layout, Placement, assigned
from splash.layout.work import DecodeRows, PromptRows, Work
from splash.sched import arriving
from splash.sched.arriving import Step
from splash.sched.batch import chunk_method
from splash.sched.limits import Limits
from splash.sched.policy import Load
from splash.sched.target import Target


class StepPrices(Protocol):
    """What a forecast asks of a cost model."""

    @property
    def ranks(self) -> int: ...

    @property
    def keeps(self) -> float:
        """Tokens that a row attends to at most; infinite where attention is dense."""
        ...

    def step_s(self, work: Work) -> float:
        """Seconds of one step."""
        ...

    def steps_s(self, works: Sequence[Work]) -> Sequence[float]:
        """Seconds of each of many steps."""
        ...


class Forecast(NamedTuple):
    """What steps take under one target, as predicted."""

    target: Target
    rows: int
    """Requests that decode in a step."""
    decode_s: float
    """Of a step of them alone."""
    known_token_s: float
    """What a prompt token at hand adds to the decodes beside it,"""
    likely_token_s: float
    """and one that comes."""


class Outlook(NamedTuple):
    """What one target would make of the load, as observations correct what is predicted."""

    rows: int
    """Requests that decode in a step."""
    crowd: float
    """Requests at hand for each of them."""
    decode_s: float
    """Seconds of a step of them alone."""
    prompt_s: float
    """Of all prompt tokens, beyond the decodes beside them."""


class Situation:
    """A load, added up once for all targets."""

    def __init__(self, load: Load, limits: Limits, keeps: float, window_steps: int, *, turn: int) -> None:
        """`window_steps`: decode steps that are looked ahead, where prompts do not need more. `turn` numbers questions:
        each draws other steps from what is likely to come."""
        self.load = load
        self.everyone = load.running + len(load.waiting)
        self.ahead = max(float(window_steps), _mean(load.outputs))
        """Tokens that a request is expected to go on for: as many as it has generated."""
        self._keeps = keeps
        self._running = [*load.lengths, *map(sum, load.prompts)]
        self._sums = Sums.of(self._running, keeps)
        """Of what runs."""
        self._waiting = {len(load.waiting): Sums.of(load.waiting, keeps)}
        """Of the first ones that wait, as many as have been asked for."""
        self._apart: dict[tuple[int, int], tuple[Sums, Sums]] = {}
        left = sum(left for _, left in load.prompts)
        self._resident = self._sums.context - left
        pending = left + self._waiting[len(load.waiting)].context
        self.chunks = -(-pending // limits.token_budget)
        """Steps that the prompts at hand take at least."""
        self.window = min(self.ahead, max(window_steps, self.chunks))
        """Steps that are looked ahead."""
        begun = [prompt for prompt in load.prompts if prompt[1]]
        budget = max(1, limits.token_budget - min(load.running, limits.token_budget // 2))
        self.at_hand = arriving.at_hand(begun, load.waiting, budget, turn)
        self.coming = arriving.coming(load.arrived, load.step, self.window, budget, turn)
        self._future = pending

    @property
    def longest(self) -> int:
        """Tokens of what runs."""
        return self._sums.longest

    def long_from(self, times: float) -> int | None:
        """A length above which requests are long beside the others: so many times the mean length, rounded up to a
        power of two. None if no request is that long, or there are no others."""
        total = self._sums + self._waiting[len(self.load.waiting)]
        bound = 1 << math.ceil(math.log2(max(1.0, times * total.context / total.count)))
        return bound if total.count > 1 and total.longest >= bound else None

    def resident(self, state_tokens: int) -> int:
        """Tokens held, where a request's recurrent state takes the room of so many."""
        return self._resident + self.load.running * state_tokens

    def admitted(self, room_tokens: int, state_tokens: int, max_running: int) -> int:
        """Requests that have room at a time, as long as they will be on average."""
        held = self._resident + self._future + self.everyone * state_tokens
        mean = held / self.everyone + self.ahead / 2
        return max(1, min(self.everyone, max_running, int(room_tokens / mean)))

    def sums(self, admitted: int) -> Sums:
        """Over what runs, and over those who wait as far as that many are admitted."""
        return self._sums + self._first(max(0, admitted - len(self._running)))

    def sums_apart(self, admitted: int, bound: int) -> tuple[Sums, Sums]:
        """Of those shorter than `bound` tokens, and of the others."""
        found = self._apart.get((admitted, bound))
        if found is None:
            lengths = [*self._running, *self.load.waiting[: max(0, admitted - len(self._running))]]
            long = Sums.of([n for n in lengths if n >= bound], self._keeps)
            longest = max([n for n in lengths if n < bound], default=0)
            found = self._apart[admitted, bound] = self.sums(admitted).without(long, longest), long
        return found

    def _first(self, waiting: int) -> Sums:
        """Of so many that wait, or of all."""
        waiting = min(waiting, len(self.load.waiting))
        if waiting not in self._waiting:
            self._waiting[waiting] = Sums.of(self.load.waiting[:waiting], self._keeps)
        return self._waiting[waiting]


@dataclass(frozen=True, slots=True)
class Sums:
    """Over the lengths of requests."""

    count: int
    context: int
    selected: float
    """What sparse attention keeps of it."""
    longest: int

    @classmethod
    def of(cls, lengths: Sequence[int], keeps: float) -> Sums:
        context, longest = sum(lengths), max(lengths, default=0)
        more = [n for n in lengths if n > keeps] if longest > keeps else []
        return cls(
            len(lengths), context, context - sum(more) + len(more) * keeps if more else context, longest
        )

    def __add__(self, other: Sums) -> Sums:
        return Sums(
            self.count + other.count,
            self.context + other.context,
            self.selected + other.selected,
            max(self.longest, other.longest),
        )

    def without(self, others: Sums, longest: int) -> Sums:
        """Of the rest, when the `longest` of it is known."""
        return Sums(
            self.count - others.count, self.context - others.context, self.selected - others.selected, longest
        )


def forecasts(
    situation: Situation, targets: Iterable[Target], prices: StepPrices, limits: Limits
) -> list[Forecast]:
    """Of the targets that can hold what runs. All steps are priced at once."""
    known, likely = situation.at_hand, situation.coming
    drawn = _Drawn((known.step, likely.step), limits, prices.ranks)
    plans = [
        _plan(situation, target, drawn, limits, prices.ranks)
        for target in targets
        if _holds(target, situation, limits)
    ]
    seconds = iter(prices.steps_s([work for plan in plans for work in plan.works]))
    found = []
    for plan in plans:
        alone_s = next(seconds)
        known_s, likely_s = (max(0.0, next(seconds) - alone_s) for _ in (known, likely))
        per_token = known_s / max(1, known.drawn), likely_s / max(1, likely.drawn)
        found.append(Forecast(plan.target, plan.rows, alone_s, *per_token))
    return found


class _Plan(NamedTuple):
    """What a forecast for a target is made from."""

    target: Target
    rows: int
    """Requests that decode in a step."""
    works: Sequence[Work]
    """A step of them alone, and one with the chunks of each drawn step."""


def _holds(target: Target, situation: Situation, limits: Limits) -> bool:
    room, longest = limits.room[target.name], situation.longest
    fits = longest <= limits.room[target.layout_of(longest).name].request_tokens
    return fits and situation.resident(room.state_tokens) <= room.tokens


def _plan(situation: Situation, target: Target, drawn: _Drawn, limits: Limits, ranks: int) -> _Plan:
    room = limits.room[target.name]
    rows = situation.admitted(room.tokens, room.state_tokens, limits.max_running)
    alone = decodes(situation, target, rows, ranks)
    beside = [Work(alone.decodes, chunks, alone.sampled) for chunks in drawn.under(target)]
    return _Plan(target, rows, [alone, *beside])


class _Drawn:
    """Steps of prompts, as targets want them. Targets that differ for none of these prompts share what is made."""

    def __init__(self, steps: Sequence[Step], limits: Limits, ranks: int) -> None:
        self._steps = steps
        self._limits = limits
        self._ranks = ranks
        self._longest = max((piece.length for step in steps for piece in step), default=0)
        self._known: dict[Target, list[tuple[PromptRows, ...]]] = {}

    def under(self, target: Target) -> list[tuple[PromptRows, ...]]:
        """By step, its chunks."""
        if target.striped_from is not None and self._longest < target.striped_from:
            target = Target(target.layout)
        if target not in self._known:
            chunks = [tuple(_chunks(step, target, self._limits, self._ranks)) for step in self._steps]
            self._known[target] = chunks
        return self._known[target]


def decodes(situation: Situation, target: Target, admitted: int, ranks: int) -> Work:
    """A step of `admitted` decodes with the lengths of those that run and of prompts that will become decodes."""
    bound = target.striped_from
    if bound is None:
        groups = _groups(target.layout, situation.sums(admitted), ranks)
    else:
        short, long = situation.sums_apart(admitted, bound)
        groups = [*_groups(target.layout, short, ranks), *_groups(target.layout_of(bound), long, ranks)]
    return Work(tuple(groups), sampled=sum(group.rows for group in groups))


def _groups(layout: Layout, sums: Sums, ranks: int) -> list[DecodeRows]:
    """Decodes of one layout, balanced over its owners as far as whole requests allow: the home of the longest request
    has at least that one. Where all ranks read alike, homes are of no account."""
    count, context, longest = sums.count, sums.context, sums.longest
    if not count:
        return []
    if layout.placement is not Placement.OWNER:
        return [DecodeRows(assigned(layout, 0), count, context, sums.selected)]
    first = max(context / ranks, float(longest)) if count > 1 else context
    others = (context - first) / max(1, min(count, ranks) - 1)
    chosen, chosen_of_others = (tokens * sums.selected / context for tokens in (first, others))
    each, more = divmod(count, ranks)
    groups = [DecodeRows(assigned(layout, 0), each + (more > 0), first, chosen)]
    for home in range(1, min(count, ranks)):
        groups.append(DecodeRows(assigned(layout, home), each + (home < more), others, chosen_of_others))
    return groups


def _chunks(step: Step, target: Target, limits: Limits, ranks: int) -> Iterator[PromptRows]:
    """A step's pieces of prompts where the target wants them; each goes to the owner that holds least of them."""
    held = [0] * ranks
    for number, (start, count, length) in enumerate(step):
        layout = target.layout_of(length)
        home = 0
        if layout.placement is Placement.OWNER:
            home = held.index(min(held))
            held[home] += length
        elif layout.placement is Placement.STRIPED:
            home = number % ranks
        at = assigned(layout, home)
        yield PromptRows(at, chunk_method(at, start, count, limits.row_bytes, ranks), start, count)


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values) if values else 0.0
