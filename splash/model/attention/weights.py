"""What the attention of one layer computes with: replicated tensors, and the head shards in their slots."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class MLAShard:
    """One head shard of one layer, views of its slot. h heads of the shard."""

    q: torch.Tensor
    """[h * (nope + rope), q_in]"""
    w_uk: torch.Tensor
    """[h, nope, latent]: a query without position into latent space."""
    w_uv: torch.Tensor
    """[h, v, latent]: a latent output into value space."""
    o: torch.Tensor
    """[hidden, h * v]"""


@dataclass(frozen=True, slots=True)
class GQAShard:
    """One head shard of one layer and the KV group that it reads, views of its slot. s = KV heads of a group."""

    qkv: torch.Tensor
    """[(h + 2 s) * d, hidden]: q, k and v one after the other."""
    biases: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None
    """Of q, k and v."""
    o: torch.Tensor
    """[hidden, h * d]"""


@dataclass(frozen=True, slots=True)
class PoolWeights:
    """What weighs the tokens of a pool against each other. Replicated on every rank."""

    gate: torch.Tensor
    """[d, hidden]"""
    ape: torch.Tensor
    """[pool, d], added to the gates by place in the pool."""


@dataclass(frozen=True, slots=True)
class IndexerWeights:
    """Replicated on every rank. h heads of the indexer, of d dimensions."""

    wq_b: torch.Tensor
    """[h * d, q_lora]"""
    wk: torch.Tensor
    """[d, hidden]"""
    k_norm_weight: torch.Tensor
    k_norm_bias: torch.Tensor
    heads: torch.Tensor
    """weights_proj [h, hidden]"""
    pool: PoolWeights | None = None
    """None: every token has its key."""


@dataclass(frozen=True, slots=True)
class MLAWeights:
    """Replicated on every rank."""

    a: torch.Tensor
    """[q_lora + latent + rope, hidden]: q_a over kv_a; without q_lora kv_a alone."""
    q_norm: torch.Tensor | None
    kv_norm: torch.Tensor
    indexer: IndexerWeights | None = None
    """Of layers that have one."""


@dataclass(frozen=True, slots=True)
class GQAWeights:
    """Replicated on every rank."""

    q_norm: torch.Tensor | None
    """[head_dim]"""
    k_norm: torch.Tensor | None
    o_bias: torch.Tensor | None
    """[hidden], added once."""
