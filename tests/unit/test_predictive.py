"""The predicting policy, with prices that are plain to see: which layout it wants, and when it leaves well alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pytest

from splash.layout.change import Change, ChangeCost
from splash.layout.layouts import LAYOUTS
from splash.layout.work import Work
from splash.sched.arriving import Arrived
from splash.sched.batch import RowBytes
from splash.sched.conviction import CAUTIOUS, Caution
from splash.sched.limits import Limits, Room
from splash.sched.policy import Decision, Load
from splash.sched.predictive import PredictivePolicy
from splash.sched.score import Targets
from splash.sched.target import Target

FAR = 1.0
"""Seconds of a step of decodes that no other layout is slower than."""


@dataclass(frozen=True, slots=True)
class Prices:
    """A step takes what its layout's decodes take, whatever they are, and as much again for each token of a prompt."""

    decode_s: Mapping[str, float]
    token_s: Mapping[str, float]
    ranks: int = 2
    keeps: float = float("inf")

    held_up_s: float = 0.0
    """Seconds by which a byte that a rank receives holds up its steps."""

    def step_s(self, work: Work) -> float:
        (name,) = {at.layout.name for at in work.places}
        tokens = sum(chunk.count for chunk in work.prompts)
        return self.decode_s.get(name, FAR) + tokens * self.token_s.get(name, 0.001)

    def steps_s(self, works: Sequence[Work]) -> list[float]:
        return [self.step_s(work) for work in works]

    def change(self, change: Change) -> ChangeCost:
        return ChangeCost(change.num_bytes, 0.0, self.held_up_s * change.num_bytes)


def limits(tokens: Mapping[str, int] | None = None, **changed: float) -> Limits:
    """Room for `tokens` by layout, plenty where it is not said."""
    plenty = 1_000_000
    given = Limits(
        room={
            name: Room((tokens or {}).get(name, plenty), (tokens or {}).get(name, plenty)) for name in LAYOUTS
        },
        max_running=1000,
        token_budget=512,
        row_bytes=RowBytes(16, 2),
        token_bytes=1,
        groups=1,
        shard_bytes=0,
    )
    return replace(given, **changed)  # type: ignore[arg-type]


def policy(
    decode_s: Mapping[str, float],
    *,
    at: Limits | None = None,
    token_s: Mapping[str, float] | None = None,
    held_up_s: float = 0.0,
    **options: object,
) -> PredictivePolicy:
    prices = Prices(decode_s, token_s or {}, held_up_s=held_up_s)
    return PredictivePolicy(prices, at or limits(), **options)  # type: ignore[arg-type]


def load(
    *,
    step: int = 1000,
    running: int = 4,
    length: int = 100,
    output: int = 50,
    waiting: int = 0,
    target: str = "tp",
    decode_s: float | None = None,
    copy_bytes_per_s: float = 1e12,
) -> Load:
    return Load(
        step=step,
        lengths=[length] * running,
        outputs=[output] * running,
        prompts=[],
        waiting=[length] * waiting,
        memory_bound=False,
        target=target,
        decode_s=decode_s,
        copy_bytes_per_s=copy_bytes_per_s,
    )


def target(decision: Decision | None) -> str:
    assert decision is not None
    return decision.target


# ---- what it wants


def test_it_goes_where_steps_are_shorter_and_says_so() -> None:
    decision = policy({"tp": 0.020, "dop": 0.010}).decide(load())
    assert target(decision) == "dop"
    assert decision is not None
    assert decision.predicted == pytest.approx(dict.fromkeys(LAYOUTS, FAR) | {"tp": 0.020, "dop": 0.010})
    assert "of 10.0 ms instead of 20.0 ms" in decision.reason


def test_without_requests_there_is_no_question() -> None:
    assert policy({"tp": 0.020, "dop": 0.010}).decide(load(running=0)) is None


def test_where_memory_binds_a_layout_that_admits_more_wins_though_its_steps_are_longer() -> None:
    """Red when room is not part of the prediction: with room for all, the shorter steps win."""
    prices, at_hand = {"tp": 0.010, "dop": 0.012}, load(running=8, waiting=56)
    tight = limits({"tp": 1500, "dop": 9000})
    decision = policy(prices, at=tight).decide(at_hand)
    assert target(decision) == "dop"
    assert decision is not None
    assert "rows a step instead of" in decision.reason
    assert target(policy(prices).decide(at_hand)) == "tp"


@pytest.mark.parametrize("room", [Room(399, 10_000), Room(10_000, 99)])
def test_a_layout_that_cannot_hold_what_runs_is_out_of_the_question(room: Room) -> None:
    """Red when the tokens of all, or of the longest request, are not looked at. 4 requests of 100 tokens run."""
    tight = limits()
    tight = replace(tight, room={**tight.room, "dop": room})
    decision = policy({"tp": 0.020, "dop": 0.010}, at=tight).decide(load())
    assert target(decision) == "tp"
    assert decision is not None
    assert "dop" not in decision.predicted


def test_a_present_layout_that_cannot_hold_what_runs_is_left_whatever_it_costs() -> None:
    tight = limits({"tp": 399})
    decision = policy({"tp": 0.010, "dop": 0.020}, at=tight).decide(load(copy_bytes_per_s=1e-6))
    assert target(decision) == "dop"
    assert decision is not None
    assert "tp cannot hold it" in decision.reason


# ---- whether it pays


def questions(asked: PredictivePolicy, at_hand: Load, most: int = 50) -> int | None:
    """Questions after which it leaves the target of `at_hand`; None if it never does."""
    for number in range(1, most + 1):
        if target(asked.decide(at_hand)) != at_hand.target:
            return number
    return None


@pytest.mark.parametrize(("dop_s", "leaves"), [(0.0099, False), (0.0097, True)])
def test_a_gain_within_the_margin_is_left_alone(dop_s: float, leaves: bool) -> None:
    assert CAUTIOUS.margin == 0.02
    assert (questions(policy({"tp": 0.010, "dop": dop_s}), load()) is not None) is leaves


@pytest.mark.parametrize(("dop_s", "asked"), [(0.0050, 1), (0.0090, 1), (0.0095, 2), (0.0097, 3)])
def test_a_large_gain_is_believed_at_once_and_a_small_one_when_it_has_been_seen_again(
    dop_s: float, asked: int
) -> None:
    """Red when gains are not added up, or must last for a while whatever they are."""
    assert CAUTIOUS.conviction == 0.08
    assert questions(policy({"tp": 0.010, "dop": dop_s}), load()) == asked


def test_a_gain_that_comes_and_goes_moves_nothing() -> None:
    """Red when losses are not taken from the gains before them, so that noise adds up to a conviction."""
    prices = {"tp": 0.0100, "dop": 0.0095}
    asked = policy(prices)
    for step in range(0, 800, 8):
        prices["tp"], prices["dop"] = prices["dop"], prices["tp"]
        assert target(asked.decide(load(step=step))) == "tp"


def test_a_change_wipes_out_what_was_promised_before_it() -> None:
    """Red when promises made under another target count: dcp promised its 4 % over tp, not over dop."""
    prices = {"tp": 0.0100, "dop": 0.0090, "dcp": 0.0096}
    asked = policy(prices, caution=Caution(dwell=0))
    assert target(asked.decide(load(target="tp"))) == "dop"
    prices["dcp"] = 0.0086
    assert questions(asked, load(target="dop")) == 2


def test_before_the_first_step_the_smallest_gain_is_taken() -> None:
    """Red when margin and conviction hold back a start: a deployment that may change only by restarts keeps it."""
    prices = {"tp": 0.0100, "dop": 0.0099}
    assert target(policy(prices).decide(load(step=0))) == "dop"
    assert target(policy(prices).decide(load(step=1))) == "tp"


def test_what_few_draws_say_of_many_prompts_is_averaged() -> None:
    """Red when each question believes the steps that it drew: prompts at hand whose lengths take turns flap. One prompt
    alone is seen whole, and believed at once."""
    token_s = {"tp": 1e-4, "dop": 2e-4}
    asked = policy({"tp": 0.010, "dop": 0.010}, token_s=token_s)
    for _ in range(20):
        assert target(asked.decide(load(waiting=400))) == "tp"
        token_s["tp"], token_s["dop"] = token_s["dop"], token_s["tp"]
    token_s.update(tp=2e-4, dop=1e-4)
    assert target(asked.decide(replace(load(), prompts=[(0, 1000)]))) == "dop"


@pytest.mark.parametrize("dwell", [1, 3])
def test_a_new_target_is_kept_for_a_while_however_large_a_gain_seems(dwell: int) -> None:
    """Red when prices that change sides move it at every question; the first target need not be kept."""
    prices = {"tp": 0.020, "dop": 0.010}
    asked = policy(prices, caution=Caution(dwell=dwell))
    assert target(asked.decide(load(target="tp"))) == "dop"
    prices["tp"] = 0.005
    assert questions(asked, load(target="dop")) == dwell + 1


def test_a_target_that_cannot_hold_the_load_is_not_kept() -> None:
    """Red when the dwell holds back a change that must be."""
    asked = policy({"tp": 0.020, "dop": 0.010}, at=limits({"dop": 1500}), caution=Caution(dwell=9))
    assert target(asked.decide(load(target="tp"))) == "dop"
    assert target(asked.decide(load(target="dop", running=16, length=400))) != "dop"


def test_a_move_that_outlasts_its_advantage_is_not_made() -> None:
    """Red when copies are taken for free: the same load moves over a fast link, or where moves are free."""
    prices, slow = {"tp": 0.020, "dcp": 0.010, "dop": 0.015}, load(target="dop", copy_bytes_per_s=100.0)
    assert target(policy(prices).decide(slow)) == "dop"
    assert target(policy(prices, free=True).decide(slow)) == "dcp"
    assert target(policy(prices).decide(load(target="dop"))) == "dcp"


def test_copies_that_hold_up_the_steps_must_earn_that_back() -> None:
    """Red when the cost of a change is not asked of the cost model: 4 requests of 100 tokens move a quarter of these to
    each rank, and of 100 more steps each saves 10 ms."""
    prices, at_hand = {"tp": 0.040, "dop": 0.020, "dcp": 0.010}, load(target="dop", output=100)
    assert target(policy(prices, held_up_s=0.9 / 100).decide(at_hand)) == "dcp"  # 1 s is gained
    assert target(policy(prices, held_up_s=1.1 / 100).decide(at_hand)) == "dop"


@pytest.mark.parametrize(("room", "wanted"), [(225, "dcp"), (224, "dp")])
def test_a_target_that_there_is_no_room_to_reach_does_not_hide_the_next(room: int, wanted: str) -> None:
    """Red when only the end of a change is looked at. Two ranks hold 200 of 400 tokens each, before and after; while
    100 of them move from owners to stripes, a quarter of those is new on each rank."""
    prices, at_hand = {"dcp": 0.010, "dp": 0.015, "dop": 0.020}, load(target="dop")
    decision = policy(prices, at=limits({"tp": room})).decide(at_hand)
    assert target(decision) == wanted
    assert decision is not None
    assert wanted != "dcp" or "100 % full at the peak" in decision.reason


def test_a_refused_target_does_not_hide_the_next() -> None:
    """Red when the policy is not told: it would ask for dop again and again, and dcp would never come up."""
    prices = {"tp": 0.030, "dop": 0.010, "dcp": 0.020}
    assert target(policy(prices).decide(load())) == "dop"
    refused = replace(load(), refused=[Target(LAYOUTS["dop"])])
    assert target(policy(prices).decide(refused)) == "dcp"
    cramped = limits({"tp": 399})
    assert target(policy(prices, at=cramped).decide(refused)) == "dcp"


def test_a_lesser_target_is_not_taken_while_the_best_is_doubted() -> None:
    """Red when it is: dp was left and must promise more, and among targets that tie each change would go to a third."""
    asked = policy({"tp": 0.0100, "dp": 0.0093, "dop": 0.0094}, caution=Caution(dwell=0))
    asked.decide(load(target="dp"))
    wanted = [target(asked.decide(load(target="tp"))) for _ in range(10)]
    assert "dop" not in wanted
    assert wanted.index("dp") == 8


def test_a_change_that_stops_the_service_must_earn_that_back() -> None:
    prices, at_hand = {"tp": 0.020, "dop": 0.010}, load(output=100)
    assert target(policy(prices, fixed_cost_s=0.5).decide(at_hand)) == "dop"  # 1 s is gained
    assert target(policy(prices, fixed_cost_s=1.5).decide(at_hand)) == "tp"


# ---- what it learns


def test_observed_steps_correct_the_predictions_of_their_layout() -> None:
    """Red when the ratio of observed to predicted is not learned, or when one layout's is taken for another's that
    has been observed itself."""
    asked = policy({"tp": 0.010, "dop": 0.020})
    for step in range(0, 800, 8):
        asked.decide(load(step=step, target="dop", decode_s=0.020))
    for step in range(800, 1600, 8):
        decision = asked.decide(load(step=step, target="tp", decode_s=0.030))
        if target(decision) == "dop":
            break
    assert decision is not None
    assert target(decision) == "dop"
    assert decision.predicted["tp"] > 0.020
    assert decision.predicted["dop"] == pytest.approx(0.020)


def test_what_all_predictions_are_wrong_by_changes_nothing() -> None:
    """Red when a layout that was never seen looks better because the present one is slower than predicted."""
    asked = policy({"tp": 0.010, "dop": 0.020})
    for step in range(0, 800, 8):
        decision = asked.decide(load(step=step, decode_s=0.030))
        assert decision is not None
        assert target(decision) == "tp"
    assert decision.predicted["tp"] == pytest.approx(0.030, rel=0.01)
    assert decision.predicted["dop"] == pytest.approx(0.060, rel=0.01)


def test_a_correction_settles_at_what_is_observed() -> None:
    asked = policy({"tp": 0.010})
    for step in range(0, 8 * 100, 8):
        decision = asked.decide(load(step=step, decode_s=0.030))
    assert decision is not None
    assert decision.predicted["tp"] == pytest.approx(0.030, rel=1e-3)


# ---- what it is after

STEPS_S = {"dop": 0.010, "dcp": 0.012}
"""Of 4 requests that run and 4 that wait with 500 tokens each, 64 steps for twice as many as run at a time take 1.28 s
under dop and 1.54 s under dcp; prompts take 2 s under dop. What one request feels is twice the prompts and once the
steps."""


@pytest.mark.parametrize(
    ("objective", "targets", "prompts_s", "wanted"),
    [
        ("throughput", Targets(), 1.9, "dop"),
        ("latency", Targets(), 1.9, "dcp"),
        ("throughput", Targets(), 1.8, "dop"),
        ("goodput", Targets(ttft_s=1.0), 1.8, "dcp"),
        ("goodput", Targets(ttft_s=1.0, tpot_s=0.010), 1.8, "dop"),
    ],
)
def test_objectives_differ_where_they_should(
    objective: str, targets: Targets, prompts_s: float, wanted: str
) -> None:
    """`prompts_s`: of all prompts under dcp."""
    asked = policy(
        STEPS_S,
        token_s={"dop": 2.0 / 2000, "dcp": prompts_s / 2000},
        at=limits(max_running=4),
        objective=objective,
        targets=targets,
    )
    assert target(asked.decide(load(length=500, waiting=4))) == wanted


# ---- prompts

LONG_PROMPT = 4000


@dataclass(frozen=True, slots=True)
class LongPrompts(Prices):
    """A prompt's tokens take under tp as long as there are tokens before them; under cp all take the same."""

    def step_s(self, work: Work) -> float:
        names = {at.layout.name for at in work.places}
        if names not in ({"tp"}, {"cp"}):
            return 100.0
        before = 2e-8 if names == {"tp"} else 0.0
        each = 4e-5 if names == {"tp"} else 1.2 * 4e-5
        return 0.010 + sum(
            chunk.count * (each + before * (chunk.start + chunk.count / 2)) for chunk in work.prompts
        )


def long_and_short(arrived: Sequence[int], pending: Sequence[int] = ()) -> Load:
    """Prompts of these lengths came one every 8 steps, the last one just now; `pending` wait."""
    return replace(
        load(step=8 * len(arrived)),
        arrived=[Arrived(8 * number, length) for number, length in enumerate(arrived)],
        waiting=pending,
    )


MIXED = ([100] * 19 + [LONG_PROMPT]) * 3
"""As many tokens as 60 prompts of 295, but most of them in the long ones."""


@pytest.mark.parametrize(
    ("at_hand", "wanted"),
    [
        (long_and_short([295] * 60), "tp"),
        (long_and_short(MIXED), "cp"),
        (long_and_short([], pending=[295] * 60), "tp"),
        (long_and_short([], pending=MIXED), "cp"),
    ],
)
def test_prompts_are_priced_as_they_are(at_hand: Load, wanted: str) -> None:
    """Red when prompts, at hand or expected, are priced by their mean length: the totals are the same."""
    asked = PredictivePolicy(LongPrompts({}, {}), limits())
    answers = [target(asked.decide(at_hand)) for _ in range(20)]
    assert answers[-1] == wanted
