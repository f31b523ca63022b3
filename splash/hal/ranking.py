"""Tokens in order of their scores, as one number each: exact top-k, in parts or whole, without ties.

A ranked token is an int64: its score's bits in an order of integers above, its position counted backwards below. So
the higher score comes first, of equal scores the lower position, and no two tokens of a sequence are equal: the
best k of a sequence are the same set however it is cut into parts and in whatever order these are merged.
"""

from __future__ import annotations

import torch

NOTHING = -(1 << 63)
"""Below every token."""
_POSITIONS = (1 << 32) - 1


def ranked(scores: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """`scores` fp32 and `positions` (int64, below 2**32) of tokens, broadcast -> int64."""
    bits = (scores + 0.0).view(torch.int32)  # -0.0 becomes 0.0: they are equal
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(torch.int64)
    return (ordered << 32) | (_POSITIONS - positions)


def positions_of(tokens: torch.Tensor) -> torch.Tensor:
    """Positions of ranked tokens, -1 where there is nothing; int64."""
    return torch.where(tokens == NOTHING, -1, _POSITIONS - (tokens & _POSITIONS))


def best(tokens: torch.Tensor, count: int) -> torch.Tensor:
    """[rows, n] ranked tokens -> the best min(count, n) of each row, in no particular order."""
    return tokens.topk(min(count, tokens.shape[1]), dim=1, sorted=False).values
