"""Paged attention on one CPU thread: gather a sequence's pages, then two matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from splash.hal.protocol import PagedKV, SeqRows

NEVER = -torch.inf


@dataclass(frozen=True, slots=True)
class Prepared:
    """What is known of a step's sequences before any layer runs."""

    seqs: tuple[SeqRows, ...]


class CpuAttention:
    """The `Attention` protocol."""

    def prepare(self, seqs: Sequence[SeqRows]) -> Prepared:
        return Prepared(tuple(seq for seq in seqs if seq.count and seq.num_keys))

    def attend(
        self, q: torch.Tensor, kv: PagedKV, prepared: Prepared, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        num_rows, num_heads, _ = q.shape
        out = q.new_zeros(num_rows, num_heads, kv.v.shape[-1])
        lse = q.new_full((num_rows, num_heads), NEVER, dtype=torch.float32)
        for seq in prepared.seqs:
            rows = slice(seq.row, seq.row + seq.count)
            out[rows], lse[rows] = self._sequence(q[rows], kv, seq, scale)
        return out, lse

    def merge(self, outs: torch.Tensor, lses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = lses.logsumexp(0)
        weights = (lses - total.clamp(min=torch.finfo(torch.float32).min)).exp_()
        return (outs * weights.unsqueeze(-1)).sum(0).to(outs.dtype), total

    def _sequence(
        self, q: torch.Tensor, kv: PagedKV, seq: SeqRows, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        count, num_heads, _ = q.shape
        kv_heads = kv.k.shape[2]
        keys = kv.k.index_select(0, seq.pages).flatten(0, 1)[: seq.num_keys].float()
        values = kv.v.index_select(0, seq.pages).flatten(0, 1)[: seq.num_keys].float()
        grouped = q.view(count, kv_heads, -1, q.shape[-1]).float()
        scores = torch.einsum("ckhd,nkd->kchn", grouped, keys) * scale
        block_size = kv.k.shape[1]
        at = torch.arange(seq.num_keys)
        positions = (at // block_size * seq.block_step + seq.first_block) * block_size + at % block_size
        last = torch.arange(seq.start, seq.start + count)
        scores.masked_fill_((positions > last[:, None])[None, :, None], NEVER)
        lse = scores.logsumexp(-1, keepdim=True)
        weights = (scores - lse.clamp(min=torch.finfo(torch.float32).min)).exp_()
        out = torch.einsum("kchn,nkd->ckhd", weights, values)
        return out.reshape(count, num_heads, -1).to(q.dtype), lse.permute(1, 0, 2, 3).reshape(
            count, num_heads
        )
