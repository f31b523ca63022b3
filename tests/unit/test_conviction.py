"""How long gains must be promised, above all by a target that was left before."""

from __future__ import annotations

from itertools import count

import pytest

from splash.layout.layouts import LAYOUTS
from splash.sched.conviction import RECKLESS, Caution, Conviction
from splash.sched.target import Target

TP, DP, DOP = (Target(LAYOUTS[name]) for name in ("tp", "dp", "dop"))
GAIN = 0.05


def questions(conviction: Conviction, now: Target, other: Target, gain: float = GAIN) -> int:
    """Answers after which `other`, that promises `gain` in each, is believed."""
    for number in count(1):
        conviction.weigh(now, {now: 0.0, other: gain})
        if not conviction.dwells and not conviction.doubts(other, gain):
            return number
    raise AssertionError


def test_targets_that_take_turns_at_being_faster_take_ever_longer_turns() -> None:
    """Red when a target that was left is taken back as readily as a new one: two that tie are changed for ever."""
    conviction = Conviction(Caution())
    turns = [questions(conviction, *pair) for pair in [(DP, DOP), (DOP, DP)] * 3]
    assert turns[0] == 2
    assert 10 <= turns[1] < turns[3] <= turns[5]


@pytest.mark.parametrize("gain", [0.5, 0.1])
def test_loads_that_come_and_go_for_ever_find_their_target_each_time(gain: float) -> None:
    """Red when wariness piles up without end: after some changes a target would be kept for ever."""
    caution = Caution()
    conviction = Conviction(caution)
    most = caution.conviction * caution.most / gain + 1
    for now, other in [(TP, DP), (DP, TP)] * 20:
        assert questions(conviction, now, other, gain) <= most
        for _ in range(60):
            conviction.weigh(other, {other: 0.0, now: -gain})


def test_who_was_never_left_is_believed_as_ever() -> None:
    """Red when every change makes the next one harder: a load that grows passes through several layouts."""
    dwell = Caution().dwell
    conviction = Conviction(Caution())
    assert questions(conviction, TP, DOP) == 2
    assert questions(conviction, DOP, DP) == max(2, dwell + 1)


def test_what_was_left_long_ago_is_believed_as_ever() -> None:
    """Red when a target that was left is distrusted for ever: loads come again."""
    caution = Caution(memory=4.0)
    conviction = Conviction(caution)
    questions(conviction, DP, DOP)
    for _ in range(12):  # 8 times falls by half three times
        conviction.weigh(DOP, {DOP: 0.0, DP: -GAIN})
    assert questions(conviction, DOP, DP) == 2


def test_a_large_gain_is_believed_soon_wherever_it_comes_from() -> None:
    """Red when wariness is a time that must pass: a burst comes back at once."""
    conviction = Conviction(Caution(dwell=0))
    questions(conviction, TP, DOP)
    assert questions(conviction, DOP, TP, gain=0.5) == 2


def test_a_target_is_the_same_from_whatever_length_on_it_stripes() -> None:
    """Red when every other bound is another target: its promises would never add up, and leaving it leave no trace."""
    conviction, bounds = Conviction(Caution()), [8192, 16384, 8192]
    for bound in bounds:
        striped = Target(LAYOUTS["dop"], bound)
        conviction.weigh(TP, {TP: 0.0, striped: GAIN})
    assert not conviction.doubts(striped, GAIN)


def test_free_switches_doubt_nothing() -> None:
    """Red when an oracle is as wary as a deployment."""
    conviction = Conviction(RECKLESS)
    assert [questions(conviction, *pair, gain=0.001) for pair in [(DP, DOP), (DOP, DP)] * 3] == [1] * 6
