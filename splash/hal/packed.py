"""FP8 KV for a port whose attention reads numbers: what a step reads is unpacked into a workspace, layer by layer.

The pages of all sequences of a call are unpacked once each, and the port's own attention runs over them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch

from splash.hal.fp8 import unpacked
from splash.hal.protocol import Attention, PagedKV, SeqRows
from splash.spec.packing import Packing


@dataclass(frozen=True, slots=True)
class PreparedPages:
    """`pages` int64: all that is read, each once; `inner` is the port's, for sequences over these in their order."""

    pages: torch.Tensor
    inner: Any


class PackedAttention:
    """The `Attention` protocol over `attention`, for latent attention (kv_heads 1) whose pages are packed.

    `kv.k` is uint8 [pages, block_size, 1, bytes], as `latent` packs keys; the values are their scaled part. Index
    keys are uint8 [pages, block_size / pool, bytes], as `index` packs them.
    """

    def __init__(
        self, attention: Attention, latent: Packing, index: Packing | None, device: str = "cpu"
    ) -> None:
        """`device`: where pages lie, by torch's name."""
        self._attention = attention
        self._device = device
        self._latent = latent
        self._index = index

    def prepare(self, seqs: Sequence[SeqRows], block_size: int) -> PreparedPages:
        pages, dense = _dense(seqs)
        return PreparedPages(pages.to(self._device), self._attention.prepare(dense, block_size))

    def attend(
        self, q: torch.Tensor, kv: PagedKV, prepared: PreparedPages, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        paged = self._unpacked(kv.k.index_select(0, prepared.pages))
        return self._attention.attend(q, paged, prepared.inner, scale)

    def prepare_selection(
        self, seqs: Sequence[SeqRows], block_size: int, top_k: int, pool: int = 1
    ) -> PreparedPages:
        pages, dense = _dense(seqs)
        inner = self._attention.prepare_selection(dense, block_size, top_k, pool)
        return PreparedPages(pages.to(self._device), inner)

    def select(
        self, q: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor, prepared: PreparedPages
    ) -> torch.Tensor:
        assert self._index is not None
        numbers = unpacked(keys.index_select(0, prepared.pages), self._index)
        return self._attention.select(q, weights, numbers, prepared.inner)

    def attend_selected(
        self, q: torch.Tensor, kv: PagedKV, tokens: torch.Tensor, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The chosen tokens of each row become one page."""
        rows, count = tokens.shape
        size = kv.k.shape[1]
        flat = tokens.clamp(min=0).view(-1)
        chosen = kv.k[flat // size, flat % size].unflatten(0, (rows, count))
        places = torch.arange(rows * count, device=tokens.device).view(rows, count)
        places = places.masked_fill(tokens < 0, -1)
        return self._attention.attend_selected(q, self._unpacked(chosen), places, scale)

    def merge(self, outs: torch.Tensor, lses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self._attention.merge(outs, lses)

    def _unpacked(self, keys: torch.Tensor) -> PagedKV:
        numbers = unpacked(keys, self._latent)
        return PagedKV(numbers, numbers[..., : self._latent.scaled])


def _dense(seqs: Sequence[SeqRows]) -> tuple[torch.Tensor, list[SeqRows]]:
    """All pages of `seqs`, each once, and `seqs` with their places among these for pages."""
    if not seqs:
        return torch.zeros(0, dtype=torch.int64), []
    pages, places = np.unique(np.concatenate([seq.pages for seq in seqs]), return_inverse=True)
    parts = np.split(places, [*accumulate(len(seq.pages) for seq in seqs[:-1])])
    return torch.from_numpy(pages), [seq._replace(pages=part) for seq, part in zip(seqs, parts, strict=True)]
