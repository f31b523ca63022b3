"""Figures: the simulator prices steps one by one as numbers and many at once as arrays, and both must agree."""

from __future__ import annotations

import random

import numpy as np

from splash.hw.figures import least, most, root


def test_a_number_gets_the_bits_that_it_gets_in_an_array() -> None:
    """Red when a number goes through a power instead of a root, which rounds otherwise for some."""
    draw = random.Random(7)
    numbers = [draw.uniform(0.0, 10.0 ** draw.randint(-12, 12)) for _ in range(5000)]
    assert [root(x) for x in numbers] == root(np.array(numbers)).tolist()
    pairs = list(zip(numbers, reversed(numbers), strict=True))
    assert [least(a, b) for a, b in pairs] == least(*np.array(pairs).T).tolist()
    assert [most(a, b) for a, b in pairs] == most(*np.array(pairs).T).tolist()


def test_a_number_beside_an_array_is_compared_with_each() -> None:
    """Red when one side alone decides how two figures are compared."""
    array = np.array([1.0, 3.0])
    assert least(2, array).tolist() == least(array, 2).tolist() == [1.0, 2.0]
    assert most(2, array).tolist() == most(array, 2).tolist() == [2.0, 3.0]
