"""Functions of a figure, which is a number or an array of them, with the same bits either way.

NumPy's take ten times as long on a number as those of the language, and a step is priced from hundreds of numbers.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Condition: TypeAlias = bool | npt.NDArray[np.bool_]
"""Of one figure, or of each of an array of them."""
Figure: TypeAlias = float | npt.NDArray[Any]
"""A float (or an int), or an array. Of a step: a number where all ranks are alike, else [ranks]. Of several steps:
[..., 1] where all ranks are alike, else [..., ranks]."""


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


def either(condition: Condition, a: Figure, b: Figure) -> Figure:
    """`a` where the condition holds, else `b`."""
    if isinstance(condition, np.ndarray):
        return np.where(condition, a, b)
    return a if condition else b


def over_ranks(figure: Figure) -> Figure:
    """That of the rank that has most, of each step: a number of one, [..., 1] of several."""
    if not isinstance(figure, np.ndarray):
        return figure
    largest: npt.NDArray[Any] = np.maximum.reduce(figure, axis=-1, keepdims=True)
    if largest.ndim > 1:
        return largest
    number: float = largest.item()
    return number


def each_rank(steps: Figure) -> Figure:
    """A number, or an array over steps, that all ranks have."""
    return steps[..., np.newaxis] if isinstance(steps, np.ndarray) else steps


def each_step(figure: Figure) -> Figure:
    """A number, or the array over steps of a figure that all ranks have."""
    return figure[..., 0] if isinstance(figure, np.ndarray) else figure
