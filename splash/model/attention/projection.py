"""What the pipeline needs of an attention family: rows to queries and new KV, outputs back to rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

from splash.hal.protocol import PagedKV
from splash.model.attention.rows import AttentionRows
from splash.model.layers.linear import linear


class Projected(NamedTuple):
    """`own` [num_sharded, own heads, d_q], `full` [full rows, all heads, d_q], and the new KV that this rank computed.

    `entries` are the fields that attention reads, each [entries, width]. MLA: one entry a row. GQA: the own group of
    each sharded row, then all groups of each row of `full_kv`.
    """

    own: torch.Tensor
    full: torch.Tensor
    entries: tuple[torch.Tensor, ...]
    q_latent: torch.Tensor | None = None
    """[N, q_lora_rank], normed: what queries, also an indexer's, are made of. None without one."""


class Projection(Protocol):
    """One layer's projections on one rank. A full projection is the own one, once for each shard."""

    num_heads: int
    groups: int
    """KV groups that can lie on one rank."""
    query_dim: int
    output_dim: int
    out_bias: torch.Tensor | None
    """[hidden], to be added once to every row."""

    def project(self, h: torch.Tensor, rows: AttentionRows) -> Projected:
        """`h` [N, hidden], normed and replicated."""
        ...

    def finish_own(self, outputs: torch.Tensor) -> torch.Tensor:
        """Attention outputs [n, own heads, output_dim] -> this rank's share [n, hidden]."""
        ...

    def finish_full(self, outputs: torch.Tensor) -> torch.Tensor:
        """Attention outputs [n, all heads, output_dim] -> [n, hidden]."""
        ...

    def paged(self, fields: Sequence[torch.Tensor]) -> PagedKV:
        """Fields [pages, tokens, width] as keys and values."""
        ...


def sum_of_shards(x: torch.Tensor, weights: Sequence[torch.Tensor]) -> torch.Tensor:
    """Σ_j x[:, j] @ weights[j] transposed: `x` [n, shards, in], weights [out, in] each."""
    total = linear(x[:, 0], weights[0])
    for j in range(1, len(weights)):
        total += linear(x[:, j], weights[j])
    return total
