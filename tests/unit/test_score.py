"""What targets are compared by, and that its explanation adds up."""

from __future__ import annotations

import re

import pytest

from splash.sched.score import Score, explained, moved

OLD = Score("prompts", 76.4, 64.0, 1.0, 310, 0.0688)
UNITS = {"ms": 1e-3, "s": 1.0}


def _seconds(text: str) -> list[float]:
    return [
        float(value.replace(",", "")) * UNITS[unit] for value, unit in re.findall(r"([\d.,]+) (ms|s)\b", text)
    ]


@pytest.mark.parametrize(
    "new",
    [
        Score("prompts", 29.1, 64.0, 1.0, 310, 0.0832),
        Score("prompts", 0.5, 64.0, 1.7, 182, 0.0521),
        Score("prompts", 900.0, 96.4, 1.25, 248, 0.00912),
    ],
)
def test_the_parts_add_up_to_the_sum(new: Score) -> None:
    """Red when a reader who adds up what is said comes to another sum than the one that is said."""
    text = explained(new, OLD._replace(first_s=1400.0))
    total, _, first, _, step, _ = _seconds(text)
    (steps,) = re.findall(r"([\d,]+) decode steps", text)
    assert first + int(steps) * step == pytest.approx(total, rel=0.01)
    assert total == pytest.approx(new.seconds, rel=0.01)


def test_an_explanation_in_words() -> None:
    """Red when numbers of two targets cannot be told apart, or a small gain reads as none."""
    new = OLD._replace(first_s=29.1, step_s=0.0832)
    assert explained(new, OLD) == (
        "57 % less time, 34.4 s instead of 80.8 s: prompts 29.1 s instead of 76.4 s,"
        " 64 decode steps of 83.2 ms instead of 68.8 ms"
    )
    crowded = OLD._replace(first_s=0.0, crowd=2.0, rows=155)
    assert explained(crowded._replace(crowd=1.0, rows=310, step_s=0.11), crowded) == (
        "20 % less time, 7.04 s instead of 8.81 s: 64 decode steps of 110 ms instead of 128 of 68.8 ms"
        " (310 rows a step instead of 155)"
    )
    assert explained(OLD._replace(step_s=0.065), OLD).startswith("0.3 % less time, ")
    missed = explained(OLD, OLD._replace(missed=1.5))
    assert missed.endswith("all of it 1.00 times instead of 1.50 for targets that are missed")
    assert _seconds(missed)[1] == pytest.approx(1.5 * _seconds(missed)[0], rel=0.01)


@pytest.mark.parametrize(
    ("num_bytes", "peak", "said"),
    [
        (0.0, 0.38, "nothing to copy"),
        (4.4e9, 0.1, "4.4 GB to each rank, whose room is 10 % full at the peak"),
        (1.5e6, 0.0, "1.5 MB to each rank"),
        (40.0, 0.0, "0.04 kB to each rank"),
    ],
)
def test_what_is_copied(num_bytes: float, peak: float, said: str) -> None:
    """Red when a small copy is `0 GB`, or none has a peak."""
    assert moved(num_bytes, peak) == said
