"""Paged attention in plain torch, row by row and head by head: what every port's attention must equal."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from splash.hal.protocol import PagedKV, SeqRows
from splash.hal.ranking import NOTHING, ranked

NEVER = -torch.inf


class ReferenceAttention:
    """The `Attention` protocol, slow and obvious. Computes in fp64 and rounds once."""

    def prepare(self, seqs: Sequence[SeqRows], block_size: int) -> tuple[SeqRows, ...]:
        return tuple(seqs)

    def attend(
        self, q: torch.Tensor, kv: PagedKV, prepared: tuple[SeqRows, ...], scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        num_rows, num_heads, _ = q.shape
        out = torch.zeros(num_rows, num_heads, kv.v.shape[-1], dtype=q.dtype, device=q.device)
        lse = torch.full((num_rows, num_heads), NEVER, dtype=torch.float32, device=q.device)
        for seq in prepared:
            keys, values = local_tokens(kv.k, seq), local_tokens(kv.v, seq)
            positions = key_positions(seq, kv.k.shape[1])
            for i in range(seq.count):
                seen = torch.tensor(
                    [p <= seq.start + i for p in positions], dtype=torch.bool, device=q.device
                )
                row = seq.row + i
                out[row], lse[row] = attend_row(q[row], keys[seen], values[seen], scale)
        return out, lse

    def prepare_selection(
        self, seqs: Sequence[SeqRows], block_size: int, top_k: int, pool: int = 1
    ) -> tuple[tuple[SeqRows, ...], int, int]:
        return tuple(seqs), top_k, pool

    def select(
        self,
        q: torch.Tensor,
        weights: torch.Tensor,
        keys: torch.Tensor,
        prepared: tuple[tuple[SeqRows, ...], int, int],
    ) -> torch.Tensor:
        """Row by row: sorted by score, then by position."""
        seqs, top_k, pool = prepared
        chosen = torch.full((q.shape[0], top_k), NOTHING, dtype=torch.int64, device=q.device)
        for seq in seqs:
            local = local_tokens(keys, seq._replace(num_keys=seq.num_keys // pool))
            positions = key_positions(seq, keys.shape[1] * pool)[pool - 1 :: pool]
            for i in range(seq.count):
                scores = index_scores(q[seq.row + i], weights[seq.row + i], local).tolist()
                seen = [(-s, p) for s, p in zip(scores, positions, strict=True) if p <= seq.start + i]
                for column, (negative, position) in enumerate(sorted(seen)[:top_k]):
                    one = ranked(torch.tensor(-negative, dtype=torch.float32), torch.tensor(position))
                    chosen[seq.row + i, column] = one
        return chosen

    def attend_selected(
        self, q: torch.Tensor, kv: PagedKV, tokens: torch.Tensor, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        size = kv.k.shape[1]
        out = torch.zeros(*q.shape[:2], kv.v.shape[-1], dtype=q.dtype, device=q.device)
        lse = torch.full(q.shape[:2], NEVER, dtype=torch.float32, device=q.device)
        for row, chosen in enumerate(tokens):
            slots = chosen[chosen >= 0]
            keys, values = kv.k[slots // size, slots % size], kv.v[slots // size, slots % size]
            out[row], lse[row] = attend_row(q[row], keys, values, scale)
        return out, lse

    def merge(self, outs: torch.Tensor, lses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """out = Σ exp(lse_p − lse) out_p with lse = log Σ exp(lse_p)."""
        _, num_rows, num_heads, _ = outs.shape
        out, lse = torch.zeros_like(outs[0]), torch.full_like(lses[0], NEVER)
        for row in range(num_rows):
            for head in range(num_heads):
                parts = [p for p, x in enumerate(lses[:, row, head].tolist()) if x != NEVER]
                if parts:
                    total = lses[parts, row, head].double().logsumexp(0)
                    weights = (lses[parts, row, head].double() - total).exp()
                    out[row, head] = (
                        (weights[:, None] * outs[parts, row, head].double()).sum(0).to(outs.dtype)
                    )
                    lse[row, head] = total.float()
        return out, lse


def local_tokens(paged: torch.Tensor, seq: SeqRows) -> torch.Tensor:
    """[num_keys, ...]: the tokens that `seq` reads, in order of its pages."""
    block_size = paged.shape[1]
    return torch.stack(
        [paged[seq.pages[j // block_size], j % block_size] for j in range(seq.num_keys)]
        or [paged.new_zeros(paged.shape[2:])]
    )[: seq.num_keys]


def key_positions(seq: SeqRows, block_size: int) -> list[int]:
    """The position in the sequence of each local token."""
    return [
        (seq.first_block + j // block_size * seq.block_step) * block_size + j % block_size
        for j in range(seq.num_keys)
    ]


def index_scores(q: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """One row: `q` [heads, d], `weights` [heads], `keys` [n, d] -> [n] fp32."""
    dots = keys.double() @ q.double().t() * q.shape[-1] ** -0.5
    return (dots.relu() @ weights.double()).float()


def attend_row(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """One row: `q` [heads, d_k], `keys` [n, kv_heads, d_k], `values` [n, kv_heads, d_v] -> [heads, d_v], [heads]."""
    heads_per_kv = q.shape[0] // keys.shape[1]
    out = torch.zeros(q.shape[0], values.shape[-1], dtype=torch.float64, device=q.device)
    lse = torch.full((q.shape[0],), NEVER, dtype=torch.float64, device=q.device)
    if keys.shape[0]:
        for head in range(q.shape[0]):
            kv_head = head // heads_per_kv
            scores = keys[:, kv_head].double() @ q[head].double() * scale
            lse[head] = scores.logsumexp(0)
            out[head] = (scores - lse[head]).exp() @ values[:, kv_head].double()
    return out.to(q.dtype), lse.float()
