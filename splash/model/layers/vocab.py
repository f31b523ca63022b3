"""Embedding and head, sharded by vocabulary in every layout."""

from __future__ import annotations

import torch

from splash.model.layers.linear import linear


class Embedding:
    """`weight` [tokens here, hidden]: the rows of tokens [first, first + tokens here)."""

    def __init__(self, weight: torch.Tensor, first: int) -> None:
        self.weight = weight
        self.first = first

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        """`tokens` int64 [n] -> [n, hidden]: zero where another rank has the row; an all-reduce closes it."""
        local = tokens - self.first
        foreign = (local < 0) | (local >= len(self.weight))
        rows = self.weight.index_select(0, local.masked_fill_(foreign, 0))
        return rows.masked_fill_(foreign[:, None], 0)


class Head:
    """`weight` [tokens here, hidden]: logits of tokens [first, first + tokens here)."""

    def __init__(self, weight: torch.Tensor, first: int) -> None:
        self.weight = weight
        self.first = first

    def __call__(self, h: torch.Tensor) -> torch.Tensor:
        """`h` [n, hidden], normed -> [n, tokens here] fp32"""
        return linear(h, self.weight).float()
