"""A policy that predicts, for each layout, how long the work at hand takes, and weighs a change against its cost.

What is at hand: the prompt tokens still to be computed, as many more as came of late, and the next tokens of every
request that runs or waits. How
many requests a layout can admit is part of its prediction: where KV memory binds, a layout that holds more tokens
serves more rows a step. How long a request will go on is not known; it is expected to go on for as long as it has
(which for heavy-tailed lengths is about right, and errs on the side of short ones), and the advantage of a layout is
expected to last as long as the work that it was computed from.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from splash.core.config import Objective
from splash.layout.layouts import LAYOUTS, Layout, Placement, Projection, assigned
from splash.layout.work import DecodeRows, PromptRows, Work
from splash.sched.batch import chunk_method
from splash.sched.limits import Limits
from splash.sched.policy import Decision, Load
from splash.sched.target import Target

MAX_CHUNKS = 16
"""Chunks that a step of prompts is priced with; more are as good as these, only longer."""
LONG = 4
"""A request is long from that many times the mean length on."""


class Prices(Protocol):
    """What the policy asks of a cost model."""

    @property
    def ranks(self) -> int: ...

    @property
    def keeps(self) -> float:
        """Tokens that a row attends to at most; infinite where attention is dense."""
        ...

    def step_s(self, work: Work) -> float:
        """Seconds of one step."""
        ...


@dataclass(frozen=True, slots=True)
class Caution:
    """How sure the policy wants to be."""

    margin: float = 0.02
    """Share of the time by which another layout must be faster."""
    dwell_steps: int = 32
    """Steps a target is kept at least."""
    window_steps: int = 64
    """Decode steps that are looked ahead, where prompts do not need more."""
    correction_weight: float = 0.1
    """Of one observation in the running ratio of observed to predicted time."""


CAUTIOUS = Caution()
RECKLESS = Caution(margin=0.0, dwell_steps=0)
"""For free switches."""


@dataclass(frozen=True, slots=True)
class Targets:
    """Seconds within which a good request stays; None: anything."""

    ttft_s: float | None = None
    tpot_s: float | None = None


NO_TARGETS = Targets()


@dataclass(frozen=True, slots=True)
class Forecast:
    """What one layout would make of the load."""

    target: Target
    rows: int
    """Requests that decode in a step."""
    decode_s: float
    """Of a step of decodes alone."""
    prompt_s: float
    """Of all prompt tokens at hand, beyond the decodes beside them."""
    seconds: float
    """The figure compared: until the work of the window is done (throughput), or what a request feels of it."""


class PredictivePolicy:
    """Predicts every layout and changes to the best where that pays. A margin, a dwell and the time that a move takes
    keep it from flapping. Deterministic in what it is given."""

    name = "auto (cost model)"
    period_steps = 16
    calm_period_steps = 32

    def __init__(
        self,
        prices: Prices,
        limits: Limits,
        *,
        caution: Caution = CAUTIOUS,
        objective: Objective = "throughput",
        targets: Targets = NO_TARGETS,
        free: bool = False,
        fixed_cost_s: float = 0.0,
    ) -> None:
        """`free`: a change costs nothing and takes no time (the oracle). `fixed_cost_s`: seconds without service that
        every change after the first step takes (restarts)."""
        self._prices = prices
        self._limits = limits
        self._caution = caution
        self._objective = objective
        self._targets = targets
        self._free = free
        self._fixed_cost_s = fixed_cost_s
        self._changed_at = -(10**9)
        self._ratios: dict[str, float] = {}
        """Of observed to predicted time, by layouts that have been observed."""
        self._common_ratio = 1.0
        """Of all of them: what is expected of a layout that has not been observed."""

    def decide(self, load: Load) -> Decision | None:
        num_requests = load.running + len(load.waiting)
        if not num_requests:
            return None
        self._observe(load)
        at_hand = _AtHand(load, self._prices.keeps)
        forecasts = {target: self._forecast(load, at_hand, target) for target in self._candidates(load)}
        predicted = {
            target.name: forecast.decode_s
            for target, forecast in forecasts.items()
            if forecast is not None and target.striped_from is None
        }
        now = Target(LAYOUTS[load.target], load.striped_from)
        present = forecasts[now]
        possible = [forecast for forecast in forecasts.values() if forecast is not None]
        if not possible:
            return None
        best = min(possible, key=lambda forecast: forecast.seconds)
        stay = Decision(load.target, "", predicted, load.striped_from)
        if best is present or load.step - self._changed_at < self._caution.dwell_steps:
            return stay
        if present is not None and not self._pays(load, present, best):
            return stay
        self._changed_at = load.step
        reason = _reason(load, present, best)
        return Decision(best.target.name, reason, predicted, best.target.striped_from)

    def _candidates(self, load: Load) -> list[Target]:
        """Every layout; owner layouts also with the long requests striped, where some are long beside the others. The
        present one is among them, with the bound that it has."""
        targets = [Target(layout) for layout in LAYOUTS.values()]
        bound = load.striped_from or _long_from(load)
        if bound is not None:
            owners = [layout for layout in LAYOUTS.values() if layout.placement is Placement.OWNER]
            targets += [Target(layout, bound) for layout in owners]
        return targets

    # ---- what a target would make of it

    def _forecast(self, load: Load, at_hand: _AtHand, target: Target) -> Forecast | None:
        """None if the target cannot hold what runs."""
        name, limits = target.name, self._limits
        room = limits.room[name]
        done = [computed for computed, _ in load.prompts]
        left = [tokens for _, tokens in load.prompts]
        resident = sum(load.lengths) + sum(done) + load.running * room.state_tokens
        longest = max(max(load.lengths, default=0), max(map(sum, load.prompts), default=0))
        if resident > room.tokens or longest > limits.room[target.layout_of(longest).name].request_tokens:
            return None
        everyone = load.running + len(load.waiting)
        ahead = self._expected_outputs(load)
        future = sum(left) + sum(load.waiting) + len(load.waiting) * room.state_tokens
        mean = (resident + future) / everyone + ahead / 2
        admitted = max(1, min(everyone, limits.max_running, int(room.tokens / mean)))
        decoding = self._decoding(at_hand, target, admitted)
        decode_s = self._prices.step_s(decoding) * self._ratio(name)
        pending = sum(left) + sum(load.waiting)
        chunks = -(-pending // limits.token_budget)
        window = min(ahead, max(self._caution.window_steps, chunks))
        prompt_s = self._prompts_s(at_hand, target, decoding, decode_s)
        prompt_s += window * self._coming_s(load, target, decoding, decode_s)
        seconds = self._score(
            prompt_s=prompt_s, decode_s=decode_s, window=window, crowd=everyone / admitted, chunks=chunks
        )
        return Forecast(target, admitted, decode_s, prompt_s, seconds)

    def _score(self, *, prompt_s: float, decode_s: float, window: float, crowd: float, chunks: int) -> float:
        """Seconds to compare, by objective. `crowd`: requests at hand for each that is served at a time."""
        throughput = prompt_s + window * decode_s * crowd
        if self._objective == "throughput":
            return throughput
        wait = prompt_s + chunks * decode_s
        if self._objective == "latency":
            return wait * crowd + window * decode_s
        late = max(0.0, wait / self._targets.ttft_s - 1) if self._targets.ttft_s else 0.0
        slow = max(0.0, decode_s / self._targets.tpot_s - 1) if self._targets.tpot_s else 0.0
        return throughput * (1 + late + slow)

    def _decoding(self, at_hand: _AtHand, target: Target, admitted: int) -> Work:
        """A step of `admitted` decodes with the lengths of those that run and of prompts that will become decodes."""
        if target.striped_from is None:
            sums = {target.layout: at_hand.sums(admitted)}
        else:
            kinds = _by_layout(at_hand.lengths(admitted), target)
            sums = {layout: _Sums.of(lengths, self._prices.keeps) for layout, lengths in kinds.items()}
        groups = [group for layout, these in sums.items() for group in self._groups(layout, these)]
        return Work(tuple(groups), sampled=sum(these.count for these in sums.values()))

    def _groups(self, layout: Layout, sums: _Sums) -> Iterator[DecodeRows]:
        """Decodes of one layout, balanced over its homes."""
        if layout.placement is Placement.BY_HEAD:
            yield DecodeRows(assigned(layout, 0), sums.count, sums.context, sums.selected)
            return
        shares = _shares(sums, self._prices.ranks, even=layout.placement is Placement.STRIPED)
        for home, (rows, tokens, chosen) in enumerate(shares):
            if rows:
                yield DecodeRows(assigned(layout, home), rows, tokens, chosen)

    def _prompts_s(self, at_hand: _AtHand, target: Target, decoding: Work, decode_s: float) -> float:
        """Seconds that all prompt tokens at hand add to the decodes beside them, short prompts and long ones apart."""
        if target.striped_from is None:
            kinds = {target.layout: at_hand.prompts}
        else:
            kinds = {}
            for done, left in at_hand.each_prompt():
                layout = target.layout_of(done + left)
                kinds[layout] = kinds.get(layout, NO_PROMPTS).with_one(done, left)
        ratio = self._ratio(target.name)
        return sum(
            self._added_s(layout, prompts, decoding, decode_s / ratio) * ratio
            for layout, prompts in kinds.items()
            if prompts.pending
        )

    def _coming_s(self, load: Load, target: Target, decoding: Work, decode_s: float) -> float:
        """Seconds that prompts like those of late will add to a step, on average: they come whole, one after the other
        or as many in a step as came."""
        if load.prompt_rows < 1 or not load.recent_prompts:
            return 0.0
        kinds: Mapping[Layout, Sequence[int]]
        if target.striped_from is None:
            kinds = {target.layout: load.recent_prompts}
        else:
            kinds = _by_layout(load.recent_prompts, target)
        total, ratio, seconds = sum(load.recent_prompts), self._ratio(target.name), 0.0
        for layout, lengths in kinds.items():
            rows = load.prompt_rows * sum(lengths) / total
            length = sum(lengths) // len(lengths)
            at_once = max(1, round(rows / length))
            whole = _Prompts(at_once, at_once * length, 0)
            added_s = self._added_s(layout, whole, decoding, decode_s / ratio) * ratio
            seconds += added_s * rows / whole.pending
        return seconds

    def _added_s(self, layout: Layout, prompts: _Prompts, decoding: Work, decode_s: float) -> float:
        """Seconds that a typical chunk of these prompts adds to a step, for all that is left of them."""
        limits, ranks, pending = self._limits, self._prices.ranks, prompts.pending
        budget = max(1, min(pending, limits.token_budget - min(decoding.num_rows, limits.token_budget - 1)))
        at_once = max(1, min(prompts.count, round(budget * prompts.count / pending), MAX_CHUNKS))
        count = max(1, budget // at_once)
        start = int(prompts.history / prompts.count + max(0.0, pending / prompts.count - count) / 2)
        chunks, homes = [], _uneven_homes(at_once, ranks)
        for number in range(at_once):
            at = assigned(layout, 0 if layout.placement is Placement.BY_HEAD else number % homes)
            method = chunk_method(at, start, count, limits.row_bytes, ranks)
            chunks.append(PromptRows(at, method, start, count))
        mixed = Work(decoding.decodes, tuple(chunks), decoding.sampled)
        return max(0.0, self._prices.step_s(mixed) - decode_s) * pending / (at_once * count)

    def _expected_outputs(self, load: Load) -> float:
        """Tokens that a request is expected to go on for: as many as it has generated."""
        mean = sum(load.outputs) / len(load.outputs) if load.outputs else 0.0
        return max(float(self._caution.window_steps), mean)

    # ---- whether it pays

    def _pays(self, load: Load, present: Forecast, best: Forecast) -> bool:
        """The gain over the time that the advantage lasts exceeds what the move costs."""
        if best.seconds >= present.seconds * (1 - self._caution.margin):
            return False
        if self._free:
            return True
        moved = self._moved_bytes(load, present.target, best.target)
        moving_s = moved / self._limits.copy_bytes_per_s
        lasts_s = present.prompt_s + self._expected_outputs(load) * present.decode_s
        gain = 1 - best.seconds / present.seconds
        fixed_s = self._fixed_cost_s if load.step else 0.0
        cost_s = fixed_s + self._caution.margin * moving_s
        return lasts_s > moving_s and gain * (lasts_s - moving_s) > cost_s

    def _moved_bytes(self, load: Load, old: Target, new: Target) -> float:
        """Bytes that a rank receives, weights and KV together, as a mean over ranks (REFERENCE §3)."""
        ranks = self._prices.ranks
        weights = 0.0
        if new.layout.projection is Projection.FULL and old.layout.projection is not Projection.FULL:
            weights = (ranks - 1) * float(self._limits.shard_bytes)
        lengths = [*load.lengths, *(done for done, _ in load.prompts)]
        if old.striped_from is None and new.striped_from is None:
            lengths = [sum(lengths)]
        return weights + sum(
            self._moved_share(old.layout_of(n).placement, new.layout_of(n).placement) * n for n in lengths
        )

    def _moved_share(self, old: Placement, new: Placement) -> float:
        """Bytes that a rank receives for one token."""
        ranks, groups, token_bytes = self._prices.ranks, self._limits.groups, self._limits.token_bytes
        f = 1 - 1 / ranks
        if new is old:
            return 0.0
        if new is Placement.BY_HEAD:
            return f * token_bytes / groups
        if old is Placement.BY_HEAD:
            return (1 - 1 / groups) * token_bytes / ranks
        return f * token_bytes / ranks

    def _observe(self, load: Load) -> None:
        """Learn how the present layout's decode steps compare with their prediction. What is wrong with all layouts
        alike must not make the others look better."""
        if load.decode_s is None or not load.lengths or load.prompts:
            return
        now = Target(LAYOUTS[load.target], load.striped_from)
        work = self._decoding(_AtHand(load, self._prices.keeps), now, len(load.lengths))
        ratio = load.decode_s / self._prices.step_s(work)
        weight = self._caution.correction_weight
        known = self._ratio(load.target)
        self._ratios[load.target] = known + weight * (ratio - known)
        self._common_ratio += weight * (ratio - self._common_ratio)

    def _ratio(self, layout: str) -> float:
        return self._ratios.get(layout, self._common_ratio)


def _by_layout(lengths: Sequence[int], target: Target) -> dict[Layout, list[int]]:
    kinds: dict[Layout, list[int]] = {}
    for length in lengths:
        kinds.setdefault(target.layout_of(length), []).append(length)
    return kinds


def _uneven_homes(num_prompts: int, ranks: int) -> int:
    """Owners over which the prompts of a step are as good as spread. By chance the busiest of T owners would have
    m + sqrt(2 m ln T) of m prompts an owner (balls into bins); homes are chosen for balance, so half of that excess."""
    mean = num_prompts / ranks
    busiest = mean + math.sqrt(2 * mean * math.log(ranks)) / 2 if ranks > 1 else mean
    return max(1, min(ranks, round(num_prompts / max(1.0, busiest))))


def _long_from(load: Load) -> int | None:
    """A length above which requests are long beside the others: LONG times the mean, rounded up to a power of two.
    None if no request is that long, or there are no others."""
    lengths = [*load.lengths, *map(sum, load.prompts), *load.waiting]
    bound = 1 << math.ceil(math.log2(max(1.0, LONG * sum(lengths) / len(lengths))))
    return bound if len(lengths) > 1 and max(lengths) >= bound else None


@dataclass(frozen=True, slots=True)
class _Sums:
    """Over the lengths of requests."""

    count: int
    context: int
    selected: float
    """What sparse attention keeps of it."""
    longest: int

    @classmethod
    def of(cls, lengths: Sequence[int], keeps: float) -> _Sums:
        context, longest = sum(lengths), max(lengths)
        selected = context if longest <= keeps else sum(n if n < keeps else keeps for n in lengths)
        return cls(len(lengths), context, selected, longest)


@dataclass(frozen=True, slots=True)
class _Prompts:
    """Prompts that are not computed to their end."""

    count: int
    pending: int
    """Tokens that are left of them."""
    history: int
    """Tokens that are computed."""

    def with_one(self, done: int, left: int) -> _Prompts:
        return _Prompts(self.count + 1, self.pending + left, self.history + done)


NO_PROMPTS = _Prompts(0, 0, 0)


class _AtHand:
    """A load, added up once for all targets."""

    def __init__(self, load: Load, keeps: float) -> None:
        self._keeps = keeps
        self._waiting = load.waiting
        self._running = [*load.lengths, *map(sum, load.prompts)]
        self._sums: dict[int, _Sums] = {}
        self._unfinished = [(done, left) for done, left in load.prompts if left]
        self.prompts = _Prompts(
            len(self._unfinished) + len(load.waiting),
            sum(left for _, left in self._unfinished) + sum(load.waiting),
            sum(done for done, _ in self._unfinished),
        )

    def lengths(self, admitted: int) -> list[int]:
        """Of what runs, and of those who wait as far as that many are admitted."""
        return [*self._running, *self._waiting[: max(0, admitted - len(self._running))]]

    def sums(self, admitted: int) -> _Sums:
        found = self._sums.get(admitted)
        if found is None:
            found = self._sums[admitted] = _Sums.of(self.lengths(admitted), self._keeps)
        return found

    def each_prompt(self) -> Iterator[tuple[int, int]]:
        """(computed, left) of each."""
        yield from self._unfinished
        yield from ((0, length) for length in self._waiting)


def _shares(sums: _Sums, ranks: int, *, even: bool) -> list[tuple[int, float, float]]:
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


def _reason(load: Load, present: Forecast | None, best: Forecast) -> str:
    what = f"{load.running} running, {len(load.waiting)} waiting, mean context {load.mean_context}"
    if present is None:
        return f"{load.target} cannot hold it: {what}"
    faster = 100 * (1 - best.seconds / present.seconds)
    if best.target.striped_from is not None:
        what = f"requests from {best.target.striped_from} tokens striped; {what}"
    more = f", {best.rows} rows a step instead of {present.rows}" if best.rows != present.rows else ""
    step = f"decode step {best.decode_s * 1e3:.3g} ms instead of {present.decode_s * 1e3:.3g}"
    prompts = ""
    if best.prompt_s or present.prompt_s:
        prompts = f", prompts {best.prompt_s:.3g} s instead of {present.prompt_s:.3g}"
    return f"{faster:.0f} % less time: {step}{prompts}{more}; {what}"
