"""Pooled index keys: several tokens make one, by weights of their own for each dimension (GLM-5.3-Flash, MODELS §2.3).

A key is cached when the last token of its pool has come. Until then key and gate of its tokens are kept in the
recurrent state of their request, on every rank: all ranks compute them for all rows, so whoever holds a block when a
pool ends can make its key, and a switch has nothing of it to move.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from splash.model.attention.index import Index, take
from splash.model.attention.weights import PoolWeights
from splash.model.layers.linear import linear


@dataclass(frozen=True, slots=True)
class PoolRows:
    """Which tokens make pools in one step, and where they go; built once for all layers.

    Tokens are numbered: the rows of the step, then those of `before`.
    """

    before: torch.Tensor
    """int64 [layers, m]: tail rows of tokens whose pool began in an earlier step."""
    members: torch.Tensor
    """int64 [pools, pool]: the tokens of each pool that ends in this step."""
    entries: Index
    """Which of these pools this rank writes to `pages` at `offsets`, now or next."""
    pages: torch.Tensor
    offsets: torch.Tensor
    unfinished: Index
    """Rows of the step whose pool does not end in it."""
    kept: torch.Tensor
    """int64 [layers, n]: their tail rows."""


class Pooling:
    """The pools of one layer with an indexer, number `layer` of them."""

    def __init__(self, weights: PoolWeights, tails: torch.Tensor, *, layer: int) -> None:
        """`tails` as in `StateViews.tail`."""
        self.weights = weights
        self.tails = tails
        self.layer = layer

    def __call__(self, keys: torch.Tensor, h: torch.Tensor, rows: PoolRows) -> torch.Tensor:
        """The pools that end in this step [pools, head_dim], from `keys` [N, head_dim] and `h` [N, hidden]; tokens of
        others are kept."""
        new = torch.cat([keys, linear(h, self.weights.gate)], dim=1)
        tokens = torch.cat([new, self.tails.index_select(0, rows.before[self.layer])])
        self.tails.index_copy_(0, rows.kept[self.layer], take(new, rows.unfinished))
        members = tokens.index_select(0, rows.members.flatten()).view(*rows.members.shape, tokens.shape[1])
        member_keys, gates = members.chunk(2, dim=-1)
        shares = (gates.float() + self.weights.ape.float()).softmax(dim=1)
        return (shares.to(keys.dtype) * member_keys).sum(1)
