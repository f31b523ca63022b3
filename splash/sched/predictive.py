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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from splash.core.config import Objective
from splash.layout.layouts import LAYOUTS, Layout, Placement, Projection, assigned
from splash.layout.work import DecodeRows, PromptRows, Work
from splash.sched.batch import chunk_method
from splash.sched.limits import Limits
from splash.sched.policy import Decision, Load
from splash.sched.target import Target

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
        forecasts = {target: self._forecast(load, target) for target in self._candidates(load)}
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

    def _forecast(self, load: Load, target: Target) -> Forecast | None:
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
        decoding = self._decoding(load, target, admitted)
        decode_s = self._prices.step_s(decoding) * self._ratio(name)
        pending = sum(left) + sum(load.waiting)
        chunks = -(-pending // limits.token_budget)
        window = min(ahead, max(self._caution.window_steps, chunks))
        prompt_s = self._prompts_s(load, target, decoding, decode_s)
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

    def _decoding(self, load: Load, target: Target, admitted: int) -> Work:
        """A step of `admitted` decodes with the lengths of those that run and of prompts that will become decodes."""
        lengths = [*load.lengths, *map(sum, load.prompts)]
        lengths += load.waiting[: max(0, admitted - len(lengths))]
        kinds: dict[Layout, list[int]] = {}
        if target.striped_from is None:
            kinds[target.layout] = lengths
        else:
            for length in lengths:
                kinds.setdefault(target.layout_of(length), []).append(length)
        groups = [group for layout, these in kinds.items() for group in self._groups(layout, these)]
        return Work(tuple(groups), sampled=len(lengths))

    def _groups(self, layout: Layout, lengths: Sequence[int]) -> Iterator[DecodeRows]:
        """Decodes of these lengths in one layout, balanced over its homes."""
        keeps, ranks = self._prices.keeps, self._prices.ranks
        context, count = sum(lengths), len(lengths)
        selected = context if max(lengths) <= keeps else sum(min(n, keeps) for n in lengths)
        if layout.placement is Placement.BY_HEAD:
            yield DecodeRows(assigned(layout, 0), count, context, selected)
            return
        even = layout.placement is Placement.STRIPED
        shares = _shares(count, context, selected, max(lengths), ranks, even=even)
        for home, (rows, tokens, chosen) in enumerate(shares):
            if rows:
                yield DecodeRows(assigned(layout, home), rows, tokens, chosen)

    def _prompts_s(self, load: Load, target: Target, decoding: Work, decode_s: float) -> float:
        """Seconds that all prompt tokens at hand add to the decodes beside them, short prompts and long ones apart."""
        kinds: dict[Layout, list[tuple[int, int]]] = {}
        for done, left in (*load.prompts, *((0, length) for length in load.waiting)):
            if left:
                kinds.setdefault(target.layout_of(done + left), []).append((done, left))
        ratio = self._ratio(target.name)
        return sum(
            self._added_s(layout, prompts, decoding, decode_s / ratio) * ratio
            for layout, prompts in kinds.items()
        )

    def _coming_s(self, load: Load, target: Target, decoding: Work, decode_s: float) -> float:
        """Seconds that prompts like those of late will add to a step, on average: they come whole, one after the other
        or as many in a step as came."""
        if load.prompt_rows < 1 or not load.recent_prompts:
            return 0.0
        kinds: dict[Layout, list[int]] = {}
        for length in load.recent_prompts:
            kinds.setdefault(target.layout_of(length), []).append(length)
        total, ratio, seconds = sum(load.recent_prompts), self._ratio(target.name), 0.0
        for layout, lengths in kinds.items():
            rows = load.prompt_rows * sum(lengths) / total
            length = sum(lengths) // len(lengths)
            at_once = max(1, round(rows / length))
            whole = [(0, length)] * at_once
            seconds += (
                self._added_s(layout, whole, decoding, decode_s / ratio) * ratio * rows / (at_once * length)
            )
        return seconds

    def _added_s(
        self, layout: Layout, prompts: Sequence[tuple[int, int]], decoding: Work, decode_s: float
    ) -> float:
        """Seconds that a typical chunk of these (computed, left) prompts adds to a step, for all that is left."""
        limits, ranks = self._limits, self._prices.ranks
        pending, history = sum(left for _, left in prompts), sum(done for done, _ in prompts)
        budget = max(1, min(pending, limits.token_budget - min(decoding.num_rows, limits.token_budget - 1)))
        at_once = max(1, min(len(prompts), round(budget * len(prompts) / pending)))
        count = max(1, budget // at_once)
        start = int(history / len(prompts) + max(0.0, pending / len(prompts) - count) / 2)
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
        work = self._decoding(load, now, len(load.lengths))
        ratio = load.decode_s / self._prices.step_s(work)
        weight = self._caution.correction_weight
        known = self._ratio(load.target)
        self._ratios[load.target] = known + weight * (ratio - known)
        self._common_ratio += weight * (ratio - self._common_ratio)

    def _ratio(self, layout: str) -> float:
        return self._ratios.get(layout, self._common_ratio)


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


def _shares(
    count: int, context: float, selected: float, longest: int, ranks: int, *, even: bool
) -> list[tuple[int, float, float]]:
    """Rows, context and selected tokens by home, balanced as far as whole requests allow: the home of the longest
    request has at least that one. `even`: stripes share the tokens whatever the homes."""
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
