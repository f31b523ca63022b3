"""Pools of the indexer made step by step are those of the whole sequence, however it is cut into steps."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from splash.exec.pooling import pool_rows
from splash.layout.exchange import route
from splash.layout.layouts import TP, Assignment
from splash.layout.rows import Method, Span
from splash.model.attention.index import take
from splash.model.attention.pooling import Pooling
from splash.model.attention.weights import PoolWeights

D, HIDDEN, BLOCK, LAYERS = 6, 10, 8, 2
AT = Assignment(TP)


@dataclass
class Fake:
    """A request: its tokens' keys and hidden states, its tail rows, and a page of its own for each block."""

    number: int
    length: int
    state: Any
    done: int = 0
    pooled: dict[int, torch.Tensor] = field(default_factory=dict)

    def targets_of(self, block: int) -> list[tuple[int, int]]:
        """Present and next holder on one rank: every pool is written twice."""
        return [(0, 100 * self.number + block), (0, 1000 + 100 * self.number + block)]


def fakes(lengths: tuple[int, ...], pool: int) -> list[Fake]:
    tails = torch.randperm(LAYERS * len(lengths) * (pool - 1)).view(len(lengths), LAYERS, 1, pool - 1)
    return [Fake(i, n, SimpleNamespace(rows=SimpleNamespace(tail=tails[i]))) for i, n in enumerate(lengths)]


def a_step(draw: random.Random, requests: list[Fake]) -> list[tuple[Fake, int]]:
    """Some of the requests, with one token or a chunk each."""
    left = [r for r in requests if r.done < r.length]
    some = draw.sample(left, draw.randint(1, len(left)))
    some.sort(key=lambda r: r.number)
    return [(r, min(draw.choice((1, 1, 2, 3, 5, 11)), r.length - r.done)) for r in some]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("pool", [2, 4])
def test_pools_do_not_depend_on_steps(pool: int, seed: int) -> None:
    """Red when a token is lost between steps, a pool is made twice, or goes to another place of its block."""
    torch.manual_seed(seed)
    draw = random.Random(seed)
    requests = fakes((23, 8, 1, 40), pool)
    weights = PoolWeights(torch.randn(D, HIDDEN), torch.randn(pool, D))
    tails = torch.full((LAYERS * len(requests) * (pool - 1), 2 * D), torch.nan)
    pooling = Pooling(weights, tails, layer=1)
    keys, hidden = ([torch.randn(r.length, width) for r in requests] for width in (D, HIDDEN))
    shape: Any = SimpleNamespace(pool=pool, block_size=BLOCK)
    while any(r.done < r.length for r in requests):
        step = a_step(draw, requests)
        spans = [Span(r.number, r.done, n, AT, None, Method.LOCAL, n == 1) for r, n in step]
        frame: Any = SimpleNamespace(sequences=[r for r, _ in step], routes=route(spans, 1))
        rows = pool_rows(frame, [r.done for r, _ in step], shape)
        new_keys, new_hidden = (
            torch.cat([x[r.number][r.done : r.done + n] for r, n in step]) for x in (keys, hidden)
        )
        made = take(pooling(new_keys, new_hidden, rows), rows.entries)
        for value, page, offset in zip(made, rows.pages.tolist(), rows.offsets.tolist(), strict=True):
            place = (page // 1000, page % 100 * (BLOCK // pool) + offset)
            assert place not in requests[page % 1000 // 100].pooled, "a pool is made twice"
            requests[page % 1000 // 100].pooled[place] = value
        for r, n in step:
            r.done += n
    for r in requests:
        shares = (hidden[r.number] @ weights.gate.t())[: r.length // pool * pool].unflatten(0, (-1, pool))
        members = keys[r.number][: r.length // pool * pool].unflatten(0, (-1, pool))
        whole = ((shares + weights.ape).softmax(1) * members).sum(1)
        assert set(r.pooled) == {(copy, i) for copy in (0, 1) for i in range(len(whole))}
        for (_, i), value in r.pooled.items():
            assert torch.allclose(value, whole[i], atol=1e-5)
