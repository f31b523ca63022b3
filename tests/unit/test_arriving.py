"""Prompts cut into steps: the fast cut against filling step by step, and what is likely to come."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splash.sched.arriving import MAX_CHUNKS, Arrived, Piece, at_hand, coming

BEGUN = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 300)), max_size=12)


def filled(unfinished: list[tuple[int, int]], budget: int) -> list[list[Piece]]:
    """Every step of these prompts, token by token."""
    rows = [(index, done + n) for index, (done, left) in enumerate(unfinished) for n in range(left)]
    steps = []
    for first in range(0, len(rows), budget):
        step: dict[int, list[int]] = {}
        for index, row in rows[first : first + budget]:
            step.setdefault(index, []).append(row)
        steps.append([Piece(r[0], len(r), sum(unfinished[index])) for index, r in step.items()])
    return steps


@given(BEGUN, st.lists(st.integers(1, 300), max_size=12), st.integers(1, 200), st.integers(0, 100))
def test_prompts_at_hand_are_cut_as_steps_are_filled(
    begun: list[tuple[int, int]], waiting: list[int], budget: int, turn: int
) -> None:
    """Red when a piece begins at the wrong token, is too long, or belongs to another prompt."""
    unfinished = [*begun, *((0, length) for length in waiting)]
    prompts, every = at_hand(begun, waiting, budget, turn), filled(unfinished, budget)
    assert prompts.tokens == sum(left for _, left in unfinished)
    assert list(prompts.step) in (every or [[]])
    assert prompts.drawn == sum(piece.rows for piece in prompts.step)


def test_every_step_of_the_prompts_at_hand_is_drawn_about_as_often() -> None:
    """Red when turns draw the same step again and again."""
    starts = Counter(at_hand([(0, 700)], [], 100, turn).step[0].start for turn in range(350))
    assert starts == pytest.approx(dict.fromkeys(range(0, 700, 100), 50), abs=2)


def test_a_step_has_no_more_pieces_than_are_worth_pricing() -> None:
    assert len(at_hand([(0, 1)] * 50, [1] * 50, 1000, turn=1).step) == MAX_CHUNKS


def test_what_came_comes_again() -> None:
    """64 requests of 100 tokens, one every second step, the last one just now: 50 tokens a step."""
    arrived = [Arrived(2 * number, 100) for number in range(65)]
    found = coming(arrived, 128, 64.0, 512, turn=1)
    assert found.tokens == 65 * 100 / 128 * 64
    assert found.step == (Piece(0, 100, 100),)


def test_a_silence_is_expected_to_go_on_and_a_burst_not_to() -> None:
    """Red when what comes is a mean that fades, or when a crowd of one step is taken for a stream."""
    arrived = [Arrived(number, 100) for number in range(100)]
    assert coming(arrived, 99, 64.0, 512, turn=1).tokens > coming(arrived, 130, 64.0, 512, turn=1).tokens > 0
    assert not coming(arrived, 99 + 64, 64.0, 512, turn=1).tokens
    crowd = [Arrived(7, 100)] * 100
    assert coming(crowd, 8, 64.0, 512, turn=1).tokens <= 100 * 100


def test_those_that_came_together_share_a_step() -> None:
    """Red when prompts are strung together whenever they came."""
    arrived = [Arrived(step, 100) for step in range(10) for _ in range(3)]
    assert len(coming(arrived, 9, 64.0, 512, turn=1).step) == 3


@pytest.mark.parametrize("lengths", [[100] * 19 + [2000], [700] * 10 + [300] * 40, list(range(1, 2001, 80))])
def test_drawn_steps_stand_for_all_over_many_turns(lengths: list[int]) -> None:
    """Red when steps are drawn evenly over requests: short ones would be seen too often for their tokens."""
    arrived = [Arrived(number, length) for number, length in enumerate(lengths)]
    turns = 200
    seen = [coming(arrived, len(arrived), 64.0, 512, turn).step for turn in range(turns)]
    long = sum(length for length in lengths if length > 512) / sum(lengths)
    drawn = sum(step[0].length > 512 for step in seen) / turns
    assert drawn == pytest.approx(long, abs=0.02)
