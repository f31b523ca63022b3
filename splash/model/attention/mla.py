"""Multi-head latent attention, absorbed: queries live in latent space, one cached latent serves all heads."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from splash.hal.protocol import Communicator, PagedKV
from splash.model.attention.index import take
from splash.model.attention.projection import Projected, sum_of_shards
from splash.model.attention.rows import AttentionRows
from splash.model.attention.weights import MLAShard, MLAWeights
from splash.model.layers.linear import heads_matmul, linear
from splash.model.layers.norm import RMSNorm
from splash.model.rope import RopeRows, rotate
from splash.spec.model import MLASpec


class MLAProjection:
    """`shards[j]` is head shard j; only resident ones may be read. See `Projection` for the methods."""

    def __init__(
        self,
        spec: MLASpec,
        weights: MLAWeights,
        shards: Sequence[MLAShard],
        rank: int,
        gather: Communicator | None = None,
    ) -> None:
        """`gather`: `weights.a` is this rank's part of the rows, and the others compute theirs; None: it has all."""
        self.spec = spec
        self._gather = gather
        self.weights = weights
        self.shards = shards
        self.own = shards[rank : rank + 1]
        self.groups = 1
        self.num_heads = spec.num_heads
        self.out_bias: torch.Tensor | None = None
        self.query_dim = spec.latent_dim
        self.output_dim = spec.kv_lora_rank
        self._q_norm = None if weights.q_norm is None else RMSNorm(weights.q_norm, spec.latent_eps)
        self._kv_norm = RMSNorm(weights.kv_norm, spec.latent_eps)

    def project(self, h: torch.Tensor, rows: AttentionRows) -> Projected:
        """The latents of all rows are computed on every rank, queries where the row's class says."""
        a = self._down(h)
        q_in, latents = self._split(h, a)
        self._finish_latents(latents, rows.rope)
        own = self._queries(q_in[: rows.num_sharded], rows.rope_sharded, self.own)
        full = self._queries(take(q_in, rows.full_queries), rows.rope_full_queries, self.shards)
        return Projected(own, full, (latents,), None if self.spec.q_lora_rank is None else q_in)

    def _down(self, h: torch.Tensor) -> torch.Tensor:
        """[n, hidden] -> [n, q_lora + latent + rope], the same on all ranks."""
        part = linear(h, self.weights.a)
        if self._gather is None:
            return part
        n, ranks = len(h), self._gather.size
        parts = self._gather.all_gather_v(part, [n] * ranks)
        return parts.view(ranks, n, -1).transpose(0, 1).reshape(n, -1)

    def _split(self, h: torch.Tensor, a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What queries are made of [n, q_in], and raw latents [n, latent + rope]."""
        rank = self.spec.q_lora_rank
        if rank is None:
            return h, a
        assert self._q_norm is not None
        return self._q_norm(a[:, :rank]), a[:, rank:]

    def _finish_latents(self, latents: torch.Tensor, rope: RopeRows) -> None:
        """Norm of the latent part, rotation of the key part, in place."""
        content = latents[:, : self.spec.kv_lora_rank]
        self._kv_norm(content, out=content)
        key = latents[:, None, self.spec.kv_lora_rank :]
        rotate(key, rope, out=key)

    def _queries(self, q_in: torch.Tensor, rope: RopeRows, shards: Sequence[MLAShard]) -> torch.Tensor:
        """[n, q_in] -> [n, heads of `shards`, latent + rope], absorbed and rotated."""
        spec, n = self.spec, q_in.shape[0]
        heads = spec.num_heads // len(self.shards)
        queries = q_in.new_empty(n, heads * len(shards), spec.latent_dim)
        if n:
            for j, shard in enumerate(shards):
                q = linear(q_in, shard.q).view(n, heads, spec.nope_dim + spec.rope_dim)
                out = queries[:, j * heads : (j + 1) * heads]
                heads_matmul(q[..., : spec.nope_dim], shard.w_uk, out=out[..., : spec.kv_lora_rank])
                rotate(q[..., spec.nope_dim :], rope, out=out[..., spec.kv_lora_rank :])
        return queries

    def finish_own(self, outputs: torch.Tensor) -> torch.Tensor:
        return self._finish(outputs, self.own)

    def finish_full(self, outputs: torch.Tensor) -> torch.Tensor:
        return self._finish(outputs, self.shards)

    def _finish(self, outputs: torch.Tensor, shards: Sequence[MLAShard]) -> torch.Tensor:
        """[n, heads of `shards`, latent] -> [n, hidden]."""
        n, spec = outputs.shape[0], self.spec
        heads = spec.num_heads // len(self.shards)
        values = outputs.new_empty(n, heads * len(shards), spec.v_dim)
        for j, shard in enumerate(shards):
            mine = slice(j * heads, (j + 1) * heads)
            heads_matmul(outputs[:, mine], shard.w_uv.transpose(1, 2), out=values[:, mine])
        return sum_of_shards(values.view(n, len(shards), -1), [shard.o for shard in shards])

    def paged(self, fields: Sequence[torch.Tensor]) -> PagedKV:
        """`fields` ([pages, tokens, latent + rope],) as the attention sees them."""
        keys = fields[0].unsqueeze(2)
        return PagedKV(keys, keys[..., : self.spec.kv_lora_rank])
