"""A policy that predicts, for each layout, how long the work at hand takes, and weighs a change against its cost.

What is at hand: the prompt tokens still to be computed, those that are likely to come, and the next tokens of every
request that runs or waits. How many requests a layout can admit is part of its prediction: where KV memory binds, a
layout that holds more tokens serves more rows a step. How long a request will go on is not known; it is expected to
go on for as long as it has (which for heavy-tailed lengths is about right, and errs on the side of short ones), and
the advantage of a layout is expected to last as long as the work that it was computed from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from splash.core.config import Objective
from splash.layout.change import Change, ChangeCost
from splash.layout.layouts import LAYOUTS, Placement
from splash.sched.arriving import Prompts
from splash.sched.conviction import CAUTIOUS, Caution, Conviction
from splash.sched.crossing import crossing, peak_share
from splash.sched.forecast import Forecast, Outlook, Situation, StepPrices, decodes, forecasts
from splash.sched.limits import Limits
from splash.sched.policy import Decision, Load
from splash.sched.score import NO_TARGETS, Score, Targets, explained, moved, worked
from splash.sched.target import Target

LONG = 4
"""A request is long from that many times the mean length on."""
WINDOW_STEPS = 64
"""Decode steps that are looked ahead, where prompts do not need more."""
CORRECTION_WEIGHT = 0.1
"""Of one observation in the running ratio of observed to predicted time."""
PROMPT_WEIGHT = 0.125
"""At least, of one question in the running means of what a prompt token takes."""


class Prices(StepPrices, Protocol):
    """What the policy asks of a cost model."""

    def change(self, change: Change) -> ChangeCost:
        """Seconds and bytes of a change of the target."""
        ...


@dataclass(frozen=True, slots=True)
class Toll:
    """What a change takes."""

    cost: ChangeCost
    peak: float
    """Of a rank's room for KV, at least; above 1 the change cannot begin."""


class PredictivePolicy:
    """Predicts every target and changes to the best that can be reached and pays. What a change costs, a margin, and
    small gains that must be seen more than once keep it from flapping. Deterministic in what it is given."""

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
        self._objective = objective
        self._targets = targets
        self._free = free
        self._fixed_cost_s = fixed_cost_s
        self._questions = 0
        self._known_s: dict[Target, float] = {}
        self._coming_s: dict[Target, float] = {}
        """What a prompt token at hand, and one that comes, adds, seconds."""
        self._conviction = Conviction(caution)
        self._ratios: dict[str, float] = {}
        """Of observed to predicted time, by layouts that have been observed."""
        self._common_ratio = 1.0
        """Of all of them: what is expected of a layout that has not been observed."""

    def decide(self, load: Load) -> Decision | None:
        if not load.running and not load.waiting:
            return None
        self._questions += 1
        situation = self._situation(load)
        found = forecasts(situation, self._candidates(situation), self._prices, self._limits)
        self._observe(situation, found)
        if not found:
            return None
        outlooks = self._outlooks(situation, found)
        predicted = {
            one.target.name: outlooks[one.target].decode_s for one in found if one.target.striped_from is None
        }
        wanted, reason = self._choose(load, situation, outlooks)
        return Decision(wanted.name, reason, predicted, wanted.striped_from)

    def _candidates(self, situation: Situation) -> list[Target]:
        """Every layout; owner layouts also with the long requests striped, where some are long beside the others. The
        present one is among them, with the bound that it has."""
        targets = [Target(layout) for layout in LAYOUTS.values()]
        bound = situation.load.striped_from or situation.long_from(LONG)
        if bound is not None:
            owners = [layout for layout in LAYOUTS.values() if layout.placement is Placement.OWNER]
            targets += [Target(layout, bound) for layout in owners]
        return targets

    # ---- what targets would make of it

    def _situation(self, load: Load) -> Situation:
        return Situation(load, self._limits, self._prices.keeps, WINDOW_STEPS, turn=self._questions)

    def _outlooks(self, situation: Situation, found: Sequence[Forecast]) -> dict[Target, Outlook]:
        """By target. Prompts count for the present target, and for all that without them are as good as the best with
        them."""
        now, best = situation.load.present, float("inf")
        alone = {one.target: self._outlook(one, situation) for one in found}
        seconds = {target: self._seconds(outlook, situation) for target, outlook in alone.items()}
        outlooks = {}
        for one in sorted(found, key=lambda one: (one.target != now, seconds[one.target])):
            outlook = alone[one.target]
            if one.target == now or seconds[one.target] <= best:
                outlook = self._outlook(one, situation, self._prompt_s(situation, one))
                best = min(best, self._seconds(outlook, situation))
            outlooks[one.target] = outlook
        return outlooks

    def _outlook(self, found: Forecast, situation: Situation, prompt_s: float = 0.0) -> Outlook:
        ratio = self._ratio(found.target)
        crowd = situation.everyone / found.rows
        return Outlook(found.rows, crowd, found.decode_s * ratio, prompt_s * ratio)

    def _prompt_s(self, situation: Situation, found: Forecast) -> float:
        """Of all prompts. One step is drawn from many prompts, so what it takes is averaged over questions."""
        known_s = self._averaged(self._known_s, found.target, situation.at_hand, found.known_token_s)
        likely_s = self._averaged(self._coming_s, found.target, situation.coming, found.likely_token_s)
        return known_s * situation.at_hand.tokens + likely_s * situation.coming.tokens

    def _averaged(
        self, means: dict[Target, float], target: Target, prompts: Prompts, token_s: float
    ) -> float:
        """The running mean, in which a question counts for more the more of the prompts it has seen."""
        if not prompts.step:
            return token_s
        mean_s = means.get(target, token_s)
        weight = max(PROMPT_WEIGHT, prompts.seen)
        means[target] = mean_s + weight * (token_s - mean_s)
        return means[target]

    def _score(self, found: Outlook, situation: Situation) -> Score:
        return Score.of(found, situation, self._objective, self._targets)

    def _seconds(self, found: Outlook, situation: Situation) -> float:
        """To compare."""
        return self._score(found, situation).seconds

    # ---- whether a change pays

    def _choose(
        self, load: Load, situation: Situation, outlooks: Mapping[Target, Outlook]
    ) -> tuple[Target, str]:
        """The target to have, and why if it is another one."""
        now = load.present
        scores = {target: self._score(found, situation) for target, found in outlooks.items()}
        ranked = sorted(scores, key=lambda target: scores[target].seconds)
        ranked = [target for target in ranked if target not in load.refused]
        if now not in outlooks:
            reason = f"{load.target} cannot hold it: {worked(load)}"
            return (ranked[0], reason) if ranked else (now, "")
        gains = {target: 1 - score.seconds / scores[now].seconds for target, score in scores.items()}
        self._conviction.weigh(now, gains)
        if self._conviction.dwells:
            return now, ""
        for target in ranked:
            # Before the first step nothing runs that could flap. Where the best is doubted no lesser one is taken in
            # its stead: among many that tie the target would go round.
            if gains[target] <= 0 or (load.step and self._conviction.doubts(target, gains[target])):
                break
            toll = self._toll(load, target)
            lasts_s = outlooks[now].prompt_s + situation.ahead * outlooks[now].decode_s
            if toll.peak <= 1 and self._pays(load, toll.cost, gains[target], lasts_s):
                why = explained(scores[target], scores[now])
                return target, f"{why}; {worked(load)}; {moved(toll.cost.num_bytes, toll.peak)}"
        return now, ""

    def _toll(self, load: Load, target: Target) -> Toll:
        change = crossing(load, target, self._limits, self._prices.ranks)
        if self._free:
            return Toll(ChangeCost(change.num_bytes, 0.0, 0.0), 0.0)
        return Toll(self._prices.change(change), peak_share(load, target, change, self._limits))

    def _pays(self, load: Load, cost: ChangeCost, gain: float, lasts_s: float) -> bool:
        """The gain, over what is left of the time that the advantage lasts, exceeds what the change costs."""
        if self._free:
            return True
        moving_s = max(cost.copying_s, cost.num_bytes / load.copy_bytes_per_s)
        fixed_s = self._fixed_cost_s if load.step else 0.0
        return gain * (lasts_s - moving_s) > fixed_s + cost.held_up_s

    # ---- what it learns

    def _observe(self, situation: Situation, found: Sequence[Forecast]) -> None:
        """Learn how the present layout's decode steps compare with their prediction. What is wrong with all layouts
        alike must not make the others look better."""
        load = situation.load
        if load.decode_s is None or not load.lengths or load.prompts:
            return
        ratio = load.decode_s / self._decode_s(situation, found)
        weight = CORRECTION_WEIGHT
        known = self._ratio(load.present)
        self._ratios[load.target] = known + weight * (ratio - known)
        self._common_ratio += weight * (ratio - self._common_ratio)

    def _decode_s(self, situation: Situation, found: Sequence[Forecast]) -> float:
        """Of a step of what runs, as predicted: most often a forecast has priced it."""
        load, rows = situation.load, len(situation.load.lengths)
        for one in found:
            if one.target == load.present and one.rows == rows:
                return one.decode_s
        return self._prices.step_s(decodes(situation, load.present, rows, self._prices.ranks))

    def _ratio(self, target: Target) -> float:
        """Of observed to predicted time."""
        return self._ratios.get(target.name, self._common_ratio)
