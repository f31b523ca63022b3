"""From logits to tokens: the same choice on every rank, and for a seeded request the same in any company.

A token that is drawn depends on its logits, on the request's seed and on its position in the sequence only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from splash.core.params import SamplingParams
from splash.hal.protocol import Communicator
from splash.spec.tensors import portion

NEVER = -math.inf
_VALUE = itemgetter(0)

Observer = Callable[[list[int], torch.Tensor], None]
"""Told the requests and the full logits [n, vocab] fp32 of every row that is sampled."""


class Want(NamedTuple):
    """What is asked for one sampled row. `position` is the index that its token will have in the sequence."""

    request: int
    params: SamplingParams
    seed: int
    position: int
    forced: int | None


class Sampler:
    """Samples rows whose logits are divided over the ranks by vocabulary.

    `gaps` and `observe` change collectives, so they are the same on all ranks.
    """

    def __init__(
        self, *, comm: Communicator, vocab_size: int, gaps: bool = False, observe: Observer | None = None
    ) -> None:
        self._comm = comm
        self._parts = [portion(vocab_size, rank, comm.size) for rank in range(comm.size)]
        self._gaps = gaps
        self._observe = observe

    def __call__(self, logits: torch.Tensor, wants: Sequence[Want]) -> tuple[list[int], list[float]]:
        """`logits` [n, this rank's part of the vocabulary] fp32 -> a token for each row, and gaps if asked."""
        tokens, gaps = self._best(logits, wants)
        drawn = [i for i, want in enumerate(wants) if not want.params.greedy]
        if self._observe is not None:
            self._observe([want.request for want in wants], self._whole(logits))
        if drawn:
            whole = self._whole(logits[drawn])
            for i, token in zip(drawn, draw(whole, [wants[i] for i in drawn]), strict=True):
                tokens[i] = token
        forced = [
            token if want.forced is None else want.forced for token, want in zip(tokens, wants, strict=True)
        ]
        return forced, gaps

    def _best(self, logits: torch.Tensor, wants: Sequence[Want]) -> tuple[list[int], list[float]]:
        """The most likely token of each row, the lowest id of equal ones."""
        values, ids = _likeliest(logits)
        found: list[Any] = [values, ids + self._parts[self._comm.rank].start]
        if self._gaps:
            found += [logits.topk(2).values[:, 1].tolist(), self._forced_logits(logits, wants)]
        # by torch.tensor: 10 µs more of the boundary
        mine = torch.from_numpy(np.array(found, dtype=np.float64)).to(logits.device)
        by_rank = self._comm.all_gather(mine).tolist()
        best, tokens = by_rank[0][0].copy(), by_rank[0][1].copy()
        for theirs, tokens_of_theirs, *_ in by_rank[1:]:
            for row, value in enumerate(theirs):
                if value > best[row]:
                    best[row], tokens[row] = value, tokens_of_theirs[row]
        gaps: list[float] = []
        if self._gaps:
            rows = zip(*[zip(*found, strict=True) for found in by_rank], strict=True)
            gaps = [_gap(row, want) for row, want in zip(rows, wants, strict=True)]
        return [int(token) for token in tokens], gaps

    def _forced_logits(self, logits: torch.Tensor, wants: Sequence[Want]) -> list[float]:
        """Of each row: the logit of what is forced, if this rank has it, else -inf."""
        part = self._parts[self._comm.rank]
        return [
            float(row[want.forced - part.start]) if want.forced is not None and want.forced in part else NEVER
            for row, want in zip(logits, wants, strict=True)
        ]

    def _whole(self, logits: torch.Tensor) -> torch.Tensor:
        """[n, part] -> [n, vocabulary], from all ranks."""
        width = max(map(len, self._parts))
        padded = logits.new_zeros(len(logits), width)
        padded[:, : logits.shape[1]] = logits
        everyone = self._comm.all_gather(padded)
        return torch.cat([x[:, : len(part)] for x, part in zip(everyone, self._parts, strict=True)], dim=1)


def _likeliest(logits: torch.Tensor) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """The best logit of each row and its place, the lowest of equal ones. In host memory numpy finds it in 2/3 of
    torch's time for one row and half of it for 64, with cold caches (2-core Xeon)."""
    if not logits.is_cpu:
        best = logits.max(-1)
        return best.values.numpy(force=True), best.indices.numpy(force=True)
    rows = logits.numpy()
    places = rows.argmax(1)
    return rows[np.arange(len(rows)), places], places


Found = tuple[float, ...]
"""What one rank found for a row: its best logit, whose token, and for gaps its second best and the forced one."""


def _gap(row: Sequence[Found], want: Want) -> float:
    """The best logit of a row less the forced one's, or less the second best."""
    best = max(row, key=_VALUE)
    if want.forced is not None:
        return best[0] - max(found[3] for found in row)
    return best[0] - max(best[2], *(found[0] for found in row if found is not best), NEVER)


def draw(logits: torch.Tensor, wants: Sequence[Want]) -> list[int]:
    """One token a row by inverse transform: temperature, top-k, top-p, min-p, then `uniform`. [n, vocab] fp32."""
    scores = logits.double() / _column(w.params.temperature for w in wants)
    scores = _keep_top_k(scores, [w.params.top_k for w in wants])
    probs = _keep_min_p(_keep_top_p(scores.softmax(-1), wants), wants)
    cumulated = probs.cumsum(-1)
    total = cumulated[:, -1:].contiguous()
    u = torch.from_numpy(uniform([w.seed for w in wants], [w.position for w in wants]))[:, None]
    drawn = torch.searchsorted(cumulated, u * total, right=True)
    last = torch.searchsorted(cumulated, total)
    return torch.minimum(drawn, last)[:, 0].tolist()


def _column(values: object) -> torch.Tensor:
    return torch.tensor(list(values), dtype=torch.float64)[:, None]  # type: ignore[call-overload]


def _keep_top_k(scores: torch.Tensor, top_k: list[int]) -> torch.Tensor:
    """-inf for all but the k best of each row (k = 0: all stay)."""
    vocab = scores.shape[1]
    counts = [k if 0 < k < vocab else vocab for k in top_k]
    if min(counts) == vocab:
        return scores
    widest = max(k for k in counts if k < vocab)
    best = scores.topk(widest).values
    least = best.gather(1, torch.tensor([[min(k, widest) - 1] for k in counts]))
    least[[k == vocab for k in counts]] = -torch.inf
    return scores.masked_fill(scores < least, -torch.inf)


def _keep_top_p(probs: torch.Tensor, wants: Sequence[Want]) -> torch.Tensor:
    """Zero for all but the smallest set of likeliest tokens whose probabilities reach top_p."""
    top_p = _column(w.params.top_p for w in wants)
    if (top_p >= 1).all():
        return probs
    ranked = probs.sort(dim=-1, descending=True).values
    before = ranked.cumsum(-1) - ranked
    num_kept = (before < top_p).sum(-1, keepdim=True)
    least = ranked.gather(1, num_kept - 1).masked_fill_(top_p >= 1, 0.0)
    return probs.masked_fill(probs < least, 0.0)


def _keep_min_p(probs: torch.Tensor, wants: Sequence[Want]) -> torch.Tensor:
    """Zero for tokens less likely than min_p times the likeliest."""
    min_p = _column(w.params.min_p for w in wants)
    return probs.masked_fill(probs < min_p * probs.amax(-1, keepdim=True), 0.0)


def uniform(seeds: Sequence[int], positions: Sequence[int]) -> npt.NDArray[np.float64]:
    """In [0, 1), of each (seed, position) alone: splitmix64 (Steele et al. 2014), twice."""
    seed = np.array(seeds, dtype=np.uint64)
    position = np.array(positions, dtype=np.uint64)
    with np.errstate(over="ignore"):
        mixed = _mix(_mix(seed) + position * np.uint64(0x9E3779B97F4A7C15))
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
