"""Functions of a figure, which is a number or an array of them, with the same bits either way.

NumPy's take ten times as long on a number as those of the language, and a step is priced from hundreds of numbers.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Figure = Any
"""A float (or an int), or an array."""


def root(figure: Figure) -> Figure:
    """The square root, of each."""
    return np.sqrt(figure) if isinstance(figure, np.ndarray) else math.sqrt(figure)


def least(a: Figure, b: Figure) -> Figure:
    """The smaller one, of each pair."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.minimum(a, b)
    return min(a, b)


def most(a: Figure, b: Figure) -> Figure:
    """The larger one, of each pair."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.maximum(a, b)
    return max(a, b)
