"""Sparse attention on one CPU thread: scores of index keys and the best tokens, attention over chosen tokens.

Scores are computed for a block of rows and a part of the keys at a time, so that heads' scores stay in the cache
until they are summed. Chosen tokens are gathered row by row: with all heads of a row over the same few
thousand tokens, copying them costs a small part of the products.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import gcd

import torch

from splash.hal.protocol import PagedKV, SeqRows
from splash.hal.ranking import NOTHING, best, ranked

NEVER = -torch.inf
PART_TOKENS = 1024
"""Index keys that are scored at a time."""
BLOCK_SCORES = 1 << 20
"""Scores of single heads that exist at a time, at most (one row at least)."""
BATCH_TOKENS = 2048
"""Gathered tokens of the rows that attend together (one row at least)."""


@dataclass(frozen=True, slots=True)
class Scored:
    """One sequence whose rows [row, row + count) choose among its first keys.

    `positions` int64 [num_keys] of the last token of each key in `pages`; `start` is the position of the first row.
    """

    row: int
    count: int
    start: int
    pages: torch.Tensor
    positions: torch.Tensor


@dataclass(frozen=True, slots=True)
class PreparedSelection:
    seqs: tuple[Scored, ...]
    top_k: int


def prepare_selection(
    seqs: Sequence[SeqRows], block_size: int, top_k: int, pool: int = 1
) -> PreparedSelection:
    scored = (_scored(seq, block_size, pool) for seq in seqs if seq.count and seq.num_keys >= pool)
    return PreparedSelection(tuple(scored), top_k)


def _scored(seq: SeqRows, block_size: int, pool: int) -> Scored:
    blocks = torch.arange(len(seq.pages)) * seq.block_step + seq.first_block
    positions = (blocks * block_size)[:, None] + torch.arange(pool - 1, block_size, pool)
    pages = torch.from_numpy(seq.pages)
    return Scored(seq.row, seq.count, seq.start, pages, positions.flatten()[: seq.num_keys // pool])


def select(
    q: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor, prepared: PreparedSelection
) -> torch.Tensor:
    """See `Attention.select`."""
    chosen = torch.full((q.shape[0], prepared.top_k), NOTHING, dtype=torch.int64)
    scaled = weights * q.shape[-1] ** -0.5
    for seq in prepared.seqs:
        for first, stop in _row_blocks(seq, q.shape[1]):
            rows = slice(seq.row + first, seq.row + stop)
            tokens = ranked(_scores(q[rows].float(), scaled[rows], keys, seq), seq.positions)
            if seq.count > 1:
                at = torch.arange(seq.start + first, seq.start + stop)
                tokens.masked_fill_(seq.positions > at[:, None], NOTHING)
            found = best(tokens, prepared.top_k)
            chosen[rows, : found.shape[1]] = found
    return chosen


def _row_blocks(seq: Scored, heads: int) -> Iterator[tuple[int, int]]:
    """The rows of a sequence in blocks whose scores stay below BLOCK_SCORES, also summed over heads."""
    step = max(1, BLOCK_SCORES // max(heads * PART_TOKENS, len(seq.positions)))
    for first in range(0, seq.count, step):
        yield first, min(first + step, seq.count)


def _scores(q: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor, seq: Scored) -> torch.Tensor:
    """`q` [n, heads, d], `weights` [n, heads] -> [n, num_keys] fp32."""
    n, heads, _ = q.shape
    flat, block_size = q.reshape(n * heads, -1), keys.shape[1]
    scores = q.new_empty(n, len(seq.positions))
    step = max(1, PART_TOKENS // block_size)
    for part, pages in zip(scores.split(step * block_size, dim=1), seq.pages.split(step), strict=False):
        here = keys.index_select(0, pages).flatten(0, 1)[: part.shape[1]].float()
        dots = torch.mm(flat, here.t()).relu_().view(n, heads, -1)
        torch.bmm(weights[:, None], dots, out=part.unsqueeze(1))
    return scores


def attend_selected(
    q: torch.Tensor, kv: PagedKV, tokens: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `Attention.attend_selected`."""
    num_rows, width = tokens.shape
    out = q.new_zeros(num_rows, q.shape[1], kv.v.shape[-1], dtype=torch.float32)
    lse = q.new_full((num_rows, q.shape[1]), NEVER, dtype=torch.float32)
    if width:
        keys, values = _Tokens(kv.k), None if kv.v.data_ptr() == kv.k.data_ptr() else _Tokens(kv.v)
        step = max(1, BATCH_TOKENS // width)
        for first in range(0, num_rows, step):
            rows = slice(first, min(first + step, num_rows))
            _attend_rows(q[rows].float(), keys, values, tokens[rows], scale, out[rows], lse[rows])
    return out.to(q.dtype), lse


def _attend_rows(
    q: torch.Tensor,
    keys: _Tokens,
    values: _Tokens | None,
    tokens: torch.Tensor,
    scale: float,
    out: torch.Tensor,
    lse: torch.Tensor,
) -> None:
    """`q` [n, heads, d_k] over `tokens` [n, width] into `out` [n, heads, d_v] and `lse` [n, heads]."""
    none = tokens < 0
    padded = bool(none.any())
    k = keys.gather(tokens, none if padded else None)
    v = k[..., : out.shape[-1]] if values is None else values.gather(tokens, none if padded else None)
    scores = torch.bmm(q, k.transpose(1, 2)).mul_(scale)
    if padded:
        scores.masked_fill_(none[:, None], NEVER)
    weights = torch.softmax(scores, -1)
    torch.bmm(weights, v, out=out)
    torch.sub(scores.amax(-1), weights.amax(-1).log_(), out=lse)
    if padded:
        empty = none.all(-1)
        out[empty] = 0
        lse[empty] = NEVER


class _Tokens:
    """Pages [pages, block_size, 1, d] as rows of single tokens, without a copy.

    Rows of the view begin at every common divisor of the strides of pages and tokens, so that each token is one
    of them: `index_select` over it copies whole tokens, 7 times as fast as indexing with two tensors (2048 tokens
    of 576 numbers in 0.15 ms against 1.0, 2-core Zen 5, torch 2.13).
    """

    def __init__(self, paged: torch.Tensor) -> None:
        num_pages, self._block_size, _, width = paged.shape
        page, token = paged.stride(0), paged.stride(1)
        step = gcd(page, token)
        last = (num_pages - 1) * page + (self._block_size - 1) * token
        self._rows = paged.as_strided((last // step + 1, width), (step, 1))
        self._page, self._token = page // step, token // step

    def gather(self, tokens: torch.Tensor, none: torch.Tensor | None) -> torch.Tensor:
        """[n, width] tokens (page * block_size + offset) -> [n, width, d] fp32, 0 where `none`."""
        flat = tokens.flatten() if none is None else tokens.clamp(min=0).flatten()
        rows = flat // self._block_size * self._page + flat % self._block_size * self._token
        found = self._rows.index_select(0, rows).float().unflatten(0, tokens.shape)
        return found if none is None else found.masked_fill_(none[..., None], 0)
