"""How long the work at hand would take under a target."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from splash.layout.layouts import Layout, Placement, assigned
from splash.layout.work import DecodeRows, PromptRows, Work
from splash.sched import arriving
from splash.sched.arriving import Prompts, Step
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

    def steps_s(self, work: Work, prompts: Sequence[Sequence[PromptRows]]) -> Sequence[float]:
        """Seconds of the step of `work`, with each of these chunks in place of its own."""
        ...


@dataclass(frozen=True, slots=True)
class Outlook:
    """What one target would make of the load, prompts apart."""

    target: Target
    rows: int
    """Requests that decode in a step."""
    crowd: float
    """Requests at hand for each of them."""
    decodes: Work
    """A step of them alone."""
    alone_s: float
    """That it takes, as predicted."""
    decode_s: float
    """As observations correct it."""
    prompt_s: float = 0.0
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
        self.longest = max(max(load.lengths, default=0), max(map(sum, load.prompts), default=0))
        pending = sum(left for _, left in load.prompts) + sum(load.waiting)
        self.chunks = -(-pending // limits.token_budget)
        """Steps that the prompts at hand take at least."""
        self.window = min(self.ahead, max(window_steps, self.chunks))
        """Steps that are looked ahead."""
        unfinished = [prompt for prompt in load.prompts if prompt[1]] + [(0, n) for n in load.waiting]
        budget = max(1, limits.token_budget - min(load.running, limits.token_budget // 2))
        self.at_hand = arriving.at_hand(unfinished, budget)
        self.coming = arriving.coming(load.arrived, load.step, self.window, budget, turn)
        self._keeps = keeps
        self._running = [*load.lengths, *map(sum, load.prompts)]
        self._resident = sum(load.lengths) + sum(done for done, _ in load.prompts)
        self._future = pending
        self._sums: dict[int, Sums] = {}
        self._apart: dict[tuple[int, int], tuple[Sums | None, Sums | None]] = {}

    def resident(self, state_tokens: int) -> int:
        """Tokens held, where a request's recurrent state takes the room of so many."""
        return self._resident + self.load.running * state_tokens

    def admitted(self, room_tokens: int, state_tokens: int, max_running: int) -> int:
        """Requests that have room at a time, as long as they will be on average."""
        held = self._resident + self._future + self.everyone * state_tokens
        mean = held / self.everyone + self.ahead / 2
        return max(1, min(self.everyone, max_running, int(room_tokens / mean)))

    def lengths(self, admitted: int) -> list[int]:
        """Of what runs, and of those who wait as far as that many are admitted."""
        return [*self._running, *self.load.waiting[: max(0, admitted - len(self._running))]]

    def sums(self, admitted: int) -> Sums:
        found = self._sums.get(admitted)
        if found is None:
            found = self._sums[admitted] = Sums.of(self.lengths(admitted), self._keeps)
        return found

    def sums_apart(self, admitted: int, bound: int) -> tuple[Sums | None, Sums | None]:
        """Of those shorter than `bound` tokens, and of the others; None where there are none."""
        found = self._apart.get((admitted, bound))
        if found is None:
            lengths = self.lengths(admitted)
            kinds = [n for n in lengths if n < bound], [n for n in lengths if n >= bound]
            short, long = (Sums.of(kind, self._keeps) if kind else None for kind in kinds)
            found = self._apart[admitted, bound] = short, long
        return found


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
        context, longest = sum(lengths), max(lengths)
        selected = context if longest <= keeps else context - sum(n - keeps for n in lengths if n > keeps)
        return cls(len(lengths), context, selected, longest)


def outlook(
    situation: Situation, target: Target, prices: StepPrices, limits: Limits, ratio: float
) -> Outlook | None:
    """None if the target cannot hold what runs. `ratio`: of observed to predicted seconds."""
    room, longest = limits.room[target.name], situation.longest
    if situation.resident(room.state_tokens) > room.tokens:
        return None
    if longest > limits.room[target.layout_of(longest).name].request_tokens:
        return None
    admitted = situation.admitted(room.tokens, room.state_tokens, limits.max_running)
    step = decodes(situation, target, admitted, prices)
    alone_s = prices.step_s(step)
    return Outlook(target, admitted, situation.everyone / admitted, step, alone_s, alone_s * ratio)


def prompt_token_s(
    found: Outlook, situation: Situation, prices: StepPrices, limits: Limits
) -> tuple[float, float]:
    """Seconds that a prompt token adds to the decodes beside it: of those at hand, and of those that come."""
    known, likely = situation.at_hand.steps, situation.coming.steps
    if not known and not likely:
        return 0.0, 0.0
    chunks = [_chunks(step, found.target, limits, prices.ranks) for step in (*known, *likely)]
    added = [max(0.0, seconds - found.alone_s) for seconds in prices.steps_s(found.decodes, chunks)]
    return _each(situation.at_hand, added[: len(known)]), _each(situation.coming, added[len(known) :])


def decodes(situation: Situation, target: Target, admitted: int, prices: StepPrices) -> Work:
    """A step of `admitted` decodes with the lengths of those that run and of prompts that will become decodes."""
    bound = target.striped_from
    if bound is None:
        sums = {target.layout: situation.sums(admitted)}
    else:
        short, long = situation.sums_apart(admitted, bound)
        kinds = {target.layout: short, target.layout_of(bound): long}
        sums = {layout: these for layout, these in kinds.items() if these is not None}
    groups = [group for layout, these in sums.items() for group in _groups(layout, these, prices.ranks)]
    return Work(tuple(groups), sampled=sum(these.count for these in sums.values()))


def _groups(layout: Layout, sums: Sums, ranks: int) -> Iterator[DecodeRows]:
    """Decodes of one layout, balanced over its homes."""
    if layout.placement is Placement.BY_HEAD:
        yield DecodeRows(assigned(layout, 0), sums.count, sums.context, sums.selected)
        return
    shares = _shares(sums, ranks, even=layout.placement is Placement.STRIPED)
    for home, (rows, tokens, chosen) in enumerate(shares):
        if rows:
            yield DecodeRows(assigned(layout, home), rows, tokens, chosen)


def _shares(sums: Sums, ranks: int, *, even: bool) -> list[tuple[int, float, float]]:
    """Rows, context and selected tokens by home, balanced as far as whole requests allow: the home of the longest
    request has at least that one. `even`: stripes share the tokens whatever the homes."""
    count, context, selected, longest = sums.count, sums.context, sums.selected, sums.longest
    rows = [count // ranks + (home < count % ranks) for home in range(ranks)]
    if even:
        return [(n, context * n / count, selected * n / count) for n in rows]
    first = max(context / ranks, float(longest)) if count > 1 else context
    others = (context - first) / max(1, min(count, ranks) - 1)
    shares = []
    for home, n in enumerate(rows):
        tokens = first if home == 0 else others if n else 0.0
        shares.append((n, tokens, tokens * selected / context))
    return shares


def _chunks(step: Step, target: Target, limits: Limits, ranks: int) -> list[PromptRows]:
    """A step's pieces of prompts where the target wants them; each goes to the owner that holds least of them."""
    held = [0] * ranks
    chunks = []
    for number, (start, count, length) in enumerate(step):
        layout = target.layout_of(length)
        home = 0
        if layout.placement is Placement.OWNER:
            home = held.index(min(held))
            held[home] += length
        elif layout.placement is Placement.STRIPED:
            home = number % ranks
        at = assigned(layout, home)
        chunks.append(PromptRows(at, chunk_method(at, start, count, limits.row_bytes, ranks), start, count))
    return chunks


def _each(prompts: Prompts, added: Sequence[float]) -> float:
    """Seconds that one prompt token adds, if the steps drawn from them add these."""
    return sum(added) / prompts.drawn if prompts.drawn else 0.0


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values) if values else 0.0
