"""Some rows of a tensor, by slice or by number."""

from __future__ import annotations

import torch

Index = slice | torch.Tensor
"""Rows of a tensor: a slice where they are contiguous, else int64 row numbers."""


def take(x: torch.Tensor, rows: Index) -> torch.Tensor:
    """The named rows of `x`: a view if they are contiguous."""
    return x[rows] if isinstance(rows, slice) else x.index_select(0, rows)
