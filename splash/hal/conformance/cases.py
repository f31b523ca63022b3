"""Paged attention inputs, made from a seed; the suite, unit tests and benches share them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from splash.hal.protocol import PagedKV, SeqRows

NUM_LAYERS = 2
"""Layers in a page; the last one is used, so that pages are strided."""


@dataclass(frozen=True, slots=True)
class Heads:
    """The widths of one attention: `mla` reads v as the first `d_v` elements of k."""

    heads: int
    kv_heads: int
    d_k: int
    d_v: int
    mla: bool = False


@dataclass(frozen=True, slots=True)
class Rows:
    """One sequence: rows [start, start + count) over the blocks first_block, first_block + block_step, ...

    `count` may be 0. `whole_context` of what precedes the rows is cached, the rows' own tokens too.
    """

    start: int
    count: int = 1
    first_block: int = 0
    block_step: int = 1

    def num_keys(self, block_size: int) -> int:
        """Local tokens at positions before start + count."""
        blocks = range(self.first_block, -(-(self.start + self.count) // block_size), self.block_step)
        return sum(min(block_size, self.start + self.count - b * block_size) for b in blocks)


@dataclass(frozen=True, slots=True)
class Batch:
    """What an `Attention` is given."""

    q: torch.Tensor
    kv: PagedKV
    seqs: tuple[SeqRows, ...]
    scale: float


TINY_MLA = Heads(4, 1, 24, 16, mla=True)
MLA = Heads(16, 1, 576, 512, mla=True)
GQA = Heads(8, 2, 64, 64)
MHA = Heads(3, 3, 16, 8)
ALL_HEADS = (TINY_MLA, MLA, GQA, MHA)


def page_elements(heads: Heads, block_size: int) -> int:
    """Elements of one page of NUM_LAYERS layers."""
    width = heads.d_k if heads.mla else heads.d_k + heads.d_v
    return NUM_LAYERS * block_size * heads.kv_heads * width


def paged_views(pool: torch.Tensor, heads: Heads, block_size: int) -> PagedKV:
    """The last layer's k and v in `pool` [num_pages, page_elements]; nothing is copied."""
    tokens = block_size * heads.kv_heads
    shape = (block_size, heads.kv_heads)
    if heads.mla:
        at = (NUM_LAYERS - 1) * tokens * heads.d_k
        k = pool[:, at : at + tokens * heads.d_k].unflatten(1, (*shape, heads.d_k))
        return PagedKV(k, k[..., : heads.d_v])
    at = (NUM_LAYERS - 1) * tokens * (heads.d_k + heads.d_v)
    middle = at + tokens * heads.d_k
    return PagedKV(
        pool[:, at:middle].unflatten(1, (*shape, heads.d_k)),
        pool[:, middle : middle + tokens * heads.d_v].unflatten(1, (*shape, heads.d_v)),
    )


def make_batch(
    heads: Heads,
    rows: Sequence[Rows],
    *,
    block_size: int,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    seed: int = 0,
    pool: torch.Tensor | None = None,
    page_ids: Sequence[int] | None = None,
    magnitude: float = 1.0,
    spare_rows: int = 0,
) -> Batch:
    """Random q, k and v on permuted pages; everything that is no valid token is NaN.

    `pool` [num_pages, page_elements] and `page_ids`: use these pages of an existing pool.
    `spare_rows` rows of q at the end belong to no sequence.
    """
    generator = torch.Generator().manual_seed(seed)
    needed = [-(-r.num_keys(block_size) // block_size) for r in rows]
    if page_ids is None:
        page_ids = (torch.randperm(sum(needed) + 3, generator=generator)).tolist()
    if pool is None:
        shape = (max(page_ids, default=0) + 1, page_elements(heads, block_size))
        pool = torch.full(shape, float("nan"), dtype=dtype, device=device)
    kv = paged_views(pool, heads, block_size)
    seqs: list[SeqRows] = []
    row = used = 0
    for spec, num_pages in zip(rows, needed, strict=True):
        pages = np.array(page_ids[used : used + num_pages], dtype=np.int64)
        used += num_pages
        num_keys = spec.num_keys(block_size)
        for page, first in zip(pages.tolist(), range(0, num_keys, block_size), strict=True):
            count = min(block_size, num_keys - first)
            for view in (kv.k,) if heads.mla else (kv.k, kv.v):
                view[page] = float("nan")
                values = torch.randn(count, *view.shape[2:], generator=generator) * magnitude
                view[page, :count] = values.to(dtype=dtype, device=device)
        seqs.append(SeqRows(row, spec.count, spec.start, pages, spec.first_block, spec.block_step, num_keys))
        row += spec.count
    q = torch.randn(row + spare_rows, heads.heads, heads.d_k, generator=generator) * magnitude
    return Batch(q.to(dtype=dtype, device=device), kv, tuple(seqs), heads.d_k**-0.5)


def stripe_of(seq: SeqRows, first: int, step: int, block_size: int) -> SeqRows:
    """The part of a whole sequence that lies in the blocks first, first + step, ..."""
    spec = Rows(seq.start, seq.count, first, step)
    return seq._replace(
        pages=seq.pages[first::step],
        first_block=first,
        block_step=step,
        num_keys=spec.num_keys(block_size),
    )
