"""Recurrent state as the model sees it: rows of the pool, found by index, wherever their pages lie.

What a model does not have has no rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch


class StateViews(NamedTuple):
    """This rank's pool as rows of one head's dimension; a request's rows are `StateRows`."""

    matrices: torch.Tensor
    """[rows, head_dim] fp32: one key channel of one head's matrix a row."""
    taps: torch.Tensor
    """[rows, head_dim] in the compute type: what the convolution remembers of one token and head a row."""
    tail: torch.Tensor
    """[rows, 2 * index head_dim] in the compute type: key and gate of one token of an unfinished pool a row."""


class StateRows(NamedTuple):
    """Where the states of n requests lie, int64, for each recurrent layer."""

    matrices: torch.Tensor
    """[layers, n, heads * head_dim]"""
    taps: torch.Tensor
    """[layers, n, remembered tokens * 3 * heads]: oldest token first; q, k and v of all own heads."""
    tail: torch.Tensor
    """[layers with a pooled indexer, n, pool - 1]"""


@dataclass(frozen=True, slots=True)
class RecurrentRows:
    """Which rows of a step belong to which state: requests with one row together, longer spans one by one."""

    single: slice | torch.Tensor
    single_states: StateRows | None
    """None: there are none."""
    spans: tuple[tuple[slice, StateRows], ...]
