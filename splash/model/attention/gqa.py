"""Grouped-query attention: k and v are projected by head shard, so a rank computes the KV of its own group."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from splash.hal.protocol import PagedKV
from splash.layout.holders import Topology
from splash.model.attention.index import take
from splash.model.attention.projection import Projected, sum_of_shards
from splash.model.attention.rows import AttentionRows
from splash.model.attention.weights import GQAShard, GQAWeights
from splash.model.layers.linear import linear
from splash.model.layers.norm import RMSNorm
from splash.model.rope import RopeRows, rotate
from splash.spec.model import GQASpec


class GQAProjection:
    """`shards[j]` is head shard j; only resident ones may be read. See `Projection` for the methods."""

    def __init__(
        self,
        spec: GQASpec,
        weights: GQAWeights,
        shards: Sequence[GQAShard],
        rank: int,
        topo: Topology,
        norm_eps: float,
    ) -> None:
        self.spec = spec
        self.weights = weights
        self.shards = shards
        self.rank = rank
        self.topo = topo
        self.groups = topo.groups
        self.num_heads = spec.num_heads
        self.out_bias = weights.o_bias
        self.query_dim = self.output_dim = spec.head_dim
        self.heads = spec.num_heads // topo.ranks
        self.kv_heads = spec.num_kv_heads // topo.groups
        self._q_norm = self._k_norm = self._qk_norm = None
        if weights.q_norm is not None and weights.k_norm is not None:
            self._q_norm, self._k_norm = (
                RMSNorm(norm, norm_eps) for norm in (weights.q_norm, weights.k_norm)
            )
            own = [weights.q_norm.expand(self.heads, -1), weights.k_norm.expand(self.kv_heads, -1)]
            self._qk_norm = RMSNorm(torch.cat(own), norm_eps)

    def project(self, h: torch.Tensor, rows: AttentionRows) -> Projected:
        q, k, v = self._project_own(h[: rows.num_sharded], rows.rope_sharded)
        full = self._full_queries(take(h, rows.full_queries), rows.rope_full_queries)
        entries = self._with_full_kv(k, v, take(h, rows.full_kv), rows.rope_full_kv)
        return Projected(q, full, entries)

    def _project_own(
        self, h: torch.Tensor, rope: RopeRows
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q [n, own heads, d], k and v [n, width] of the own group."""
        heads, n = self.heads, h.shape[0]
        shard = self.shards[self.rank]
        qkv = linear(h, shard.qkv, _bias(shard, 0, 3)).view(n, heads + 2 * self.kv_heads, self.spec.head_dim)
        qk = qkv[:, : heads + self.kv_heads]
        if self._qk_norm is not None:
            self._qk_norm(qk, out=qk)
        rotate(qk, rope, out=qk)
        return qk[:, :heads], qk[:, heads:].flatten(1), qkv[:, heads + self.kv_heads :].flatten(1)

    def _full_queries(self, h: torch.Tensor, rope: RopeRows) -> torch.Tensor:
        """[n, hidden] -> [n, all heads, d]."""
        n, width = h.shape[0], self.heads * self.spec.head_dim
        if n == 0:
            return h.new_empty(0, self.spec.num_heads, self.spec.head_dim)
        queries = h.new_empty(n, self.topo.ranks, width)
        for j, shard in enumerate(self.shards):
            queries[:, j] = linear(h, shard.qkv[:width], _bias(shard, 0, 1))
        queries = queries.view(n, self.spec.num_heads, self.spec.head_dim)
        if self._q_norm is not None:
            self._q_norm(queries, out=queries)
        rotate(queries, rope, out=queries)
        return queries

    def _with_full_kv(
        self, k: torch.Tensor, v: torch.Tensor, h: torch.Tensor, rope: RopeRows
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The entries `k`, `v` of the own group, and after them all groups of each row of `h`."""
        n = h.shape[0]
        if n == 0:
            return k, v
        first = self.heads * self.spec.head_dim
        both = h.new_empty(n, self.groups, 2 * self.kv_heads, self.spec.head_dim)
        for group in range(self.groups):
            shard = self.shards[self.topo.ranks_of(group)[0]]
            kv = linear(h, shard.qkv[first:], _bias(shard, 1, 3))
            both[:, group] = kv.view(n, 2 * self.kv_heads, -1)
        keys = both[:, :, : self.kv_heads].reshape(n, self.groups * self.kv_heads, -1)
        if self._k_norm is not None:
            self._k_norm(keys, out=keys)
        rotate(keys, rope, out=keys)
        values = both[:, :, self.kv_heads :].reshape(n * self.groups, -1)
        return torch.cat([k, keys.view(n * self.groups, -1)]), torch.cat([v, values])

    def finish_own(self, outputs: torch.Tensor) -> torch.Tensor:
        return linear(outputs.flatten(1), self.shards[self.rank].o)

    def finish_full(self, outputs: torch.Tensor) -> torch.Tensor:
        n = outputs.shape[0]
        return sum_of_shards(outputs.reshape(n, self.topo.ranks, -1), [shard.o for shard in self.shards])

    def paged(self, fields: Sequence[torch.Tensor]) -> PagedKV:
        """`fields` k and v [pages, tokens, width] as the attention sees them."""
        k, v = (field.unflatten(-1, (self.kv_heads, self.spec.head_dim)) for field in fields)
        return PagedKV(k, v)


def _bias(shard: GQAShard, first: int, stop: int) -> torch.Tensor | None:
    """The biases of q, k, v from `first` to `stop`, one after the other."""
    return None if shard.biases is None else torch.cat(shard.biases[first:stop])
