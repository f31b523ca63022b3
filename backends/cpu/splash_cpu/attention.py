"""Paged attention on one CPU thread: gather pages into one buffer, then matrix products over it.

Measured (`python -m bench.cpu_port attention`): products over gathered pages run at the speed of dense ones, and
torch's calls (2 to 5 µs each) dominate short contexts, so decode rows are batched: sequences of about
the same length share a gather, two batched products and a softmax. What is gathered at once is bounded, so that
it stays in the cache between the two products: batches by their size, long sequences by being cut into parts
that are merged. Several rows of one sequence go in row blocks, each over the keys that its last row sees.
Everything is computed in float32.

The log-sum-exp comes from the softmax p of scores s: max(s) − log(max(p)).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from splash.hal.protocol import PagedKV, SeqRows
from splash_cpu import sparse

NEVER = -torch.inf
BATCH_TOKENS = 2048
"""Gathered tokens of a batch of decode rows at most; a sequence with more is cut."""
PART_TOKENS = 1024
"""Tokens of a part of a long sequence."""
BLOCK_ROWS = 64
"""Rows of one sequence that are computed together."""


class Batch(NamedTuple):
    """Sequences of one row each, padded to the same number of pages.

    `rows` are theirs in q, a slice if they are neighbours. `pages` [sequences * pages each]. `num_keys`: what the
    longest sees of its gathered tokens. `bad`: flat indices of gathered tokens that are no keys of a shorter one,
    and `bias` [sequences, 1, num_keys], -inf at these; None if all are as long.
    """

    rows: slice | torch.Tensor
    size: int
    pages: torch.Tensor
    num_keys: int
    bad: torch.Tensor | None
    bias: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Neighbouring rows of a sequence. They see all of the first `num_seen` gathered tokens; of the next
    up to `num_keys` those that `hidden` [rows, num_keys - num_seen] does not mark."""

    row: int
    count: int
    num_seen: int
    num_keys: int
    hidden: torch.Tensor | None


class Chunk(NamedTuple):
    """Several rows of one sequence."""

    pages: torch.Tensor
    num_keys: int
    blocks: tuple[RowBlock, ...]


class Prepared(NamedTuple):
    """What is known of a step's sequences before any layer runs. `num_rows` see at least one key.

    `long`: one row and the parts of its sequence, batches of one.
    """

    batches: tuple[Batch, ...]
    long: tuple[tuple[Batch, ...], ...]
    chunks: tuple[Chunk, ...]
    num_rows: int


class CpuAttention:
    """The `Attention` protocol. Several threads may use one instance."""

    def __init__(self) -> None:
        self._space = _Space()

    def prepare(self, seqs: Sequence[SeqRows], block_size: int) -> Prepared:
        short: list[SeqRows] = []
        long: list[tuple[Batch, ...]] = []
        chunks: list[Chunk] = []
        num_rows = 0
        for seq in seqs:
            if not seq.count or not seq.num_keys:
                continue
            if seq.count > 1:
                chunks.append(_chunk(seq, block_size))
                num_rows += sum(block.count for block in chunks[-1].blocks)
                continue
            num_rows += 1
            if seq.num_keys <= BATCH_TOKENS:
                short.append(seq)
            else:
                long.append(tuple([_batch([part], block_size) for part in _parts(seq, block_size)]))
        batches = [_batch(group, block_size) for group in _groups(short, BATCH_TOKENS // block_size)]
        return Prepared(tuple(batches), tuple(long), tuple(chunks), num_rows)

    def attend(
        self, q: torch.Tensor, kv: PagedKV, prepared: Prepared, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        dtype, q = q.dtype, q.float()
        num_rows, num_heads, _ = q.shape
        out = q.new_empty(num_rows, num_heads, kv.v.shape[-1])
        lse = q.new_empty(num_rows, num_heads)
        if prepared.num_rows != num_rows:
            out.zero_()
            lse.fill_(NEVER)
        for batch in prepared.batches:
            keys, values = self._space.gather(kv, batch.pages, batch.bad)
            _attend_batch(q, keys, values, batch, scale, out, lse)
        for parts in prepared.long:
            rows = parts[0].rows
            out[rows], lse[rows] = self.merge(*self._attend_parts(q[rows], kv, parts, scale, out))
        for chunk in prepared.chunks:
            keys, values = self._space.gather(kv, chunk.pages, None)
            for block in chunk.blocks:
                _attend_block(q, keys, values, block, scale, out, lse)
        return out.to(dtype), lse

    def _attend_parts(
        self, q: torch.Tensor, kv: PagedKV, parts: Sequence[Batch], scale: float, out: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`q` [1, heads, d_k] over each part: [parts, 1, heads, d_v] and [parts, 1, heads], to be merged."""
        outs = out.new_empty(len(parts), *out.shape[1:])
        lses = out.new_empty(len(parts), out.shape[1])
        for i, part in enumerate(parts):
            keys, values = self._space.gather(kv, part.pages, part.bad)
            _attend_one(q, keys, values, part, scale, outs[i : i + 1], lses[i : i + 1])
        return outs[:, None], lses[:, None]

    def prepare_selection(
        self, seqs: Sequence[SeqRows], block_size: int, top_k: int, pool: int = 1
    ) -> sparse.PreparedSelection:
        return sparse.prepare_selection(seqs, block_size, top_k, pool)

    def select(
        self,
        q: torch.Tensor,
        weights: torch.Tensor,
        keys: torch.Tensor,
        prepared: sparse.PreparedSelection,
    ) -> torch.Tensor:
        return sparse.select(q, weights, keys, prepared)

    def attend_selected(
        self, q: torch.Tensor, kv: PagedKV, tokens: torch.Tensor, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return sparse.attend_selected(q, kv, tokens, scale)

    def merge(self, outs: torch.Tensor, lses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = lses.logsumexp(0)
        weights = (lses - total.clamp(min=torch.finfo(torch.float32).min)).exp_().unsqueeze(-1)
        out = outs[0] * weights[0]
        for part, weight in zip(outs[1:], weights[1:], strict=True):
            out.addcmul_(part.float(), weight)
        return out.to(outs.dtype), total


def _parts(seq: SeqRows, block_size: int) -> Iterator[SeqRows]:
    """`seq` (one row, which sees all its keys) in parts of about PART_TOKENS."""
    step = max(1, PART_TOKENS // block_size)
    for first in range(0, len(seq.pages), step):
        num_keys = min(step * block_size, seq.num_keys - first * block_size)
        yield seq._replace(pages=seq.pages[first : first + step], num_keys=num_keys)


def _batch(group: Sequence[SeqRows], block_size: int) -> Batch:
    """One padded batch of a group, longest first; the padding repeats a sequence's last page."""
    size = len(group)
    num_pages = len(group[0].pages)
    pages = torch.from_numpy(_padded([seq.pages for seq in group]))
    rows = [seq.row for seq in group]
    neighbours = rows == list(range(rows[0], rows[0] + size))
    at = slice(rows[0], rows[0] + size) if neighbours else torch.tensor(rows)
    counts = [seq.num_keys for seq in group]
    longest = max(counts)
    if min(counts) == longest:
        return Batch(at, size, pages, longest, None, None)
    no_key = np.arange(num_pages * block_size) >= np.array(counts)[:, None]
    bias = np.where(no_key[:, None, :longest], np.float32(NEVER), np.float32(0))
    return Batch(at, size, pages, longest, torch.from_numpy(np.flatnonzero(no_key)), torch.from_numpy(bias))


def _padded(pages: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    """One after the other, none of them longer than the first, which the others are padded to."""
    longest, shortest = len(pages[0]), len(pages[-1])
    if longest == shortest:
        return pages[0] if len(pages) == 1 else np.concatenate(pages)
    table = np.empty((len(pages), longest), dtype=np.int64)
    for row, own in zip(table, pages, strict=True):
        count = len(own)
        row[:count] = own
        row[count:] = own[-1]
    return table.ravel()


def _chunk(seq: SeqRows, block_size: int) -> Chunk:
    first_position = seq.first_block * block_size
    blocks = []
    row = max(0, first_position - seq.start)  # rows before that see nothing
    while row < seq.count:
        count = min(BLOCK_ROWS, seq.count - row)
        first, last = seq.start + row, seq.start + row + count - 1
        num_seen, num_keys = _keys_until(seq, first, block_size), _keys_until(seq, last, block_size)
        hidden = None
        if num_seen < num_keys:
            at = torch.arange(num_seen, num_keys)
            block = at // block_size * seq.block_step + seq.first_block
            positions = block * block_size + at % block_size
            hidden = positions > torch.arange(first, last + 1)[:, None]
        blocks.append(RowBlock(seq.row + row, count, num_seen, num_keys, hidden))
        row += count
    return Chunk(torch.from_numpy(seq.pages), seq.num_keys, tuple(blocks))


def _keys_until(seq: SeqRows, position: int, block_size: int) -> int:
    """Local tokens at positions up to `position`."""
    block, within = divmod(position, block_size)
    full, offset = divmod(block - seq.first_block, seq.block_step)
    if full < 0:
        return 0
    partial = within + 1 if offset == 0 else block_size
    return min(full * block_size + partial, seq.num_keys)


def _groups(seqs: Sequence[SeqRows], max_pages: int) -> Iterator[list[SeqRows]]:
    """Sequences of similar page counts, as many together as `max_pages` allow after padding."""
    lengths = [len(seq.pages) for seq in seqs]
    group: list[SeqRows] = []
    longest = 0
    for place in sorted(range(len(seqs)), key=lengths.__getitem__, reverse=True):
        length = lengths[place]
        if group and (longest - length > max(1, longest // 8) or (len(group) + 1) * longest > max_pages):
            yield group
            group = []
        if not group:
            longest = length
        group.append(seqs[place])
    if group:
        yield group


class _Space(threading.local):
    """Memory for gathered pages that stays mapped and in the cache: one for each thread that attends."""

    def __init__(self) -> None:
        self._bytes = {"k": torch.empty(0, dtype=torch.uint8), "v": torch.empty(0, dtype=torch.uint8)}

    def gather(
        self, kv: PagedKV, pages: torch.Tensor, bad: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """[tokens, kv_heads, d] of k and v in float32, zero where `bad`, until the next call. Where v lies in k's
        tokens, it is a view of k here too."""
        keys = self._tokens("k", kv.k, pages, bad)
        if kv.v.data_ptr() == kv.k.data_ptr():
            return keys, keys[..., : kv.v.shape[-1]]
        return keys, self._tokens("v", kv.v, pages, bad)

    def _tokens(
        self, name: str, paged: torch.Tensor, pages: torch.Tensor, bad: torch.Tensor | None
    ) -> torch.Tensor:
        shape = (pages.shape[0], *paged.shape[1:])
        num_bytes = prod(shape) * paged.itemsize
        if self._bytes[name].shape[0] < num_bytes:
            self._bytes[name] = torch.empty(num_bytes, dtype=torch.uint8)
        space = self._bytes[name][:num_bytes].view(paged.dtype).view(shape)
        tokens = torch.index_select(paged, 0, pages, out=space).flatten(0, 1).float()
        if bad is not None:
            tokens.index_fill_(0, bad, 0)
        return tokens


def _attend_batch(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    batch: Batch,
    scale: float,
    out: torch.Tensor,
    lse: torch.Tensor,
) -> None:
    """A batch's rows of `q` [rows, heads, d_k], `out` [rows, heads, d_v] and `lse` [rows, heads]."""
    rows = batch.rows
    if isinstance(rows, slice):
        _attend_one(q[rows], keys, values, batch, scale, out[rows], lse[rows])
    else:
        some, their = out.new_empty(batch.size, *out.shape[1:]), lse.new_empty(batch.size, *lse.shape[1:])
        _attend_one(q[rows], keys, values, batch, scale, some, their)
        out[rows], lse[rows] = some, their


def _attend_one(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    batch: Batch,
    scale: float,
    out: torch.Tensor,
    lse: torch.Tensor,
) -> None:
    """`q` [sequences, heads, d_k], one row each over its own keys, into `out` and `lse`."""
    size, kv_heads = batch.size, keys.shape[1]
    keys = keys.unflatten(0, (size, -1))[:, : batch.num_keys]
    values = values.unflatten(0, (size, -1))[:, : batch.num_keys]
    bias, beta = (q.new_empty(1), 0) if batch.bias is None else (batch.bias, 1)
    if kv_heads == 1:
        scores = torch.baddbmm(bias, q, keys[:, :, 0].transpose(1, 2), beta=beta, alpha=scale)
        weights = torch.softmax(scores, -1)
        torch.bmm(weights, values[:, :, 0], out=out)
        torch.sub(scores.amax(-1), weights.amax(-1).log_(), out=lse)
        return
    grouped = q.view(size, kv_heads, -1, q.shape[-1]).transpose(0, 1)
    scores = q.new_empty(*grouped.shape[:3], keys.shape[1])
    outs = q.new_empty(*grouped.shape[:3], values.shape[-1])
    for j in range(kv_heads):
        key = keys[:, :, j].transpose(1, 2)
        torch.baddbmm(bias, grouped[j], key, beta=beta, alpha=scale, out=scores[j])
    weights = torch.softmax(scores, -1)
    for j in range(kv_heads):
        torch.bmm(weights[j], values[:, :, j], out=outs[j])
    out.view(size, kv_heads, -1, out.shape[-1]).copy_(outs.transpose(0, 1))
    lse.view(size, kv_heads, -1).copy_((scores.amax(-1) - weights.amax(-1).log_()).transpose(0, 1))


def _attend_block(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    block: RowBlock,
    scale: float,
    out: torch.Tensor,
    lse: torch.Tensor,
) -> None:
    """A block's rows of `q` [rows, heads, d_k], `out` [rows, heads, d_v] and `lse` [rows, heads]."""
    rows = slice(block.row, block.row + block.count)
    count, kv_heads, zero = block.count, keys.shape[1], q.new_zeros(1)
    keys, values = keys[: block.num_keys], values[: block.num_keys]
    by_kv_head = zip(
        q[rows].chunk(kv_heads, 1), out[rows].chunk(kv_heads, 1), lse[rows].chunk(kv_heads, 1), strict=True
    )
    for j, (queries, outs, lses) in enumerate(by_kv_head):
        flat = queries.reshape(-1, q.shape[-1])
        scores = torch.addmm(zero, flat, keys[:, j].t(), beta=0, alpha=scale)
        if block.hidden is not None:
            edge = scores.view(count, -1, block.num_keys)[..., block.num_seen :]
            edge.masked_fill_(block.hidden[:, None], NEVER)
        weights = torch.softmax(scores, -1)
        outs.copy_(torch.mm(weights, values[:, j]).view(outs.shape))
        lses.copy_((scores.amax(-1) - weights.amax(-1).log_()).view(lses.shape))
