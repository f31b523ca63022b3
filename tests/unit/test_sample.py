"""Sampling: seeds, filters, ties, vocabularies that ranks do not divide."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from splash.core.params import SamplingParams
from splash.exec.sample import Sampler, Want, draw, uniform
from splash.hal.threads import ThreadCommunicator, run_ranks
from splash.spec.tensors import portion

GREEDY = SamplingParams()


def want(
    params: SamplingParams = GREEDY, *, seed: int = 0, position: int = 0, forced: int | None = None
) -> Want:
    return Want(0, params, seed, position, forced)


def sample(
    logits: torch.Tensor, wants: Sequence[Want], ranks: int, *, gaps: bool = False
) -> tuple[list[int], list[float]]:
    """What all ranks sample; they must agree."""

    def rank(comm: ThreadCommunicator) -> tuple[list[int], list[float]]:
        part = portion(logits.shape[1], comm.rank, comm.size)
        sampler = Sampler(comm=comm, vocab_size=logits.shape[1], gaps=gaps)
        return sampler(logits[:, part.start : part.stop], wants)

    first, *others = run_ranks(ranks, rank)
    assert all(other == first for other in others)
    return first


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_greedy_takes_the_best_and_the_lowest_of_equals(ranks: int) -> None:
    """Red when ties fall to another rank than the first, or ids are local to a rank."""
    logits = torch.zeros(4, 11)
    logits[0, 9] = 1
    logits[1, [2, 7]] = 3
    logits[2, [5, 6, 10]] = 0.5
    logits[3] = -torch.inf
    logits[3, 10] = -1e30
    assert sample(logits, [want()] * 4, ranks)[0] == [9, 2, 5, 10]


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_draw_is_the_same_however_many_ranks(ranks: int) -> None:
    """Red when the gathered logits are not in the order of the vocabulary."""
    logits = torch.randn(6, 13, generator=torch.Generator().manual_seed(0))
    wants = [want(SamplingParams(temperature=1.0), seed=i, position=7) for i in range(6)]
    assert sample(logits, wants, ranks)[0] == draw(logits, wants)


def test_a_seeded_token_does_not_depend_on_its_company() -> None:
    """Red when a draw uses anything but (logits, seed, position): batch mates, their filters, the row."""
    logits = torch.randn(1, 50, generator=torch.Generator().manual_seed(1))
    mine = want(SamplingParams(temperature=0.8, top_k=20, top_p=0.9, min_p=0.01), seed=5, position=31)
    alone, _ = sample(logits, [mine], 2)
    mates = [
        want(SamplingParams(temperature=2.0, top_k=3), seed=9, position=4),
        mine,
        want(),
        want(SamplingParams(temperature=0.1, top_p=0.1), seed=1),
    ]
    others = torch.randn(4, 50)
    others[1] = logits[0]
    assert sample(others, mates, 2)[0][1] == alone[0]


def test_seeds_and_positions_give_different_draws() -> None:
    """Red when seed or position is dropped, or n samples of one prompt are all the same."""
    assert len({float(uniform([s], [p])[0]) for s in range(40) for p in range(40)}) == 1600
    values = uniform(list(range(20_000)), [3] * 20_000)
    assert values.min() >= 0
    assert values.max() < 1
    assert abs(values.mean() - 0.5) < 0.01
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.03


def test_the_distribution_is_that_of_the_softmax() -> None:
    """Red when temperature is applied twice, or the inverse transform is off by one."""
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0, -torch.inf]])
    n = 20_000
    params = SamplingParams(temperature=0.7)
    tokens = draw(logits.expand(n, -1), [want(params, seed=i) for i in range(n)])
    wanted = (logits[0] / 0.7).softmax(-1)
    seen = Counter(tokens)
    for token, p in enumerate(wanted.tolist()):
        assert abs(seen[token] / n - p) < 0.015


def allowed(logits: torch.Tensor, params: SamplingParams) -> set[int]:
    """The slow twin: which tokens may be drawn."""
    probs = (logits.double() / params.temperature).softmax(-1).tolist()
    ranked = sorted(range(len(probs)), key=lambda i: -probs[i])
    if params.top_k:
        ranked = ranked[: params.top_k]
    total = sum(probs[i] for i in ranked)
    kept, mass = [], 0.0
    for token in ranked:
        if mass >= params.top_p and params.top_p < 1:
            break
        kept.append(token)
        mass += probs[token] / total
    return {t for t in kept if probs[t] >= params.min_p * probs[ranked[0]]}


@given(
    st.integers(0, 1000),
    st.sampled_from([0, 1, 3, 10, 40, 99]),
    st.sampled_from([1.0, 0.95, 0.5, 0.05]),
    st.sampled_from([0.0, 0.02, 0.3, 1.0]),
    st.sampled_from([0.3, 1.0, 3.0]),
)
def test_filters_keep_what_they_should(
    seed: int, top_k: int, top_p: float, min_p: float, temperature: float
) -> None:
    """Red when a filter keeps one token too many or too few, or filters apply in another order."""
    logits = torch.randn(1, 40, generator=torch.Generator().manual_seed(seed))
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    tokens = draw(logits.expand(64, -1), [want(params, seed=s) for s in range(64)])
    assert set(tokens) <= allowed(logits[0], params)


def test_filters_keep_all_that_they_should() -> None:
    """Red when a filter is too strict: every allowed token is drawn at some time."""
    logits = torch.tensor([[1.0, 0.9, 0.8, 0.7, 0.6, 0.5]])
    for params in (
        SamplingParams(temperature=1.0, top_k=3),
        SamplingParams(temperature=1.0, top_p=0.5),
        SamplingParams(temperature=1.0, min_p=0.75),
    ):
        tokens = draw(logits.expand(2000, -1), [want(params, seed=s) for s in range(2000)])
        assert set(tokens) == allowed(logits[0], params)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_gaps(ranks: int) -> None:
    """Red when a gap is taken within one rank's part of the vocabulary only."""
    logits = torch.tensor([[0.0, 5.0, 4.5, 1.0, 2.0, 0.0, 4.75], [1.0, 0.0, 0.0, 0.0, 0.0, 3.0, 0.0]])
    tokens, gaps = sample(logits, [want(), want(forced=0)], ranks, gaps=True)
    assert tokens == [1, 0]
    assert gaps == [0.25, 2.0]
    tokens, gaps = sample(logits, [want(forced=1), want()], ranks, gaps=True)
    assert tokens == [1, 5]
    assert gaps == [0.0, 2.0]


def test_a_forced_token_replaces_a_drawn_one() -> None:
    logits = torch.randn(2, 9)
    hot = SamplingParams(temperature=5.0)
    assert sample(logits, [want(hot, forced=7), want(hot, forced=2)], 2)[0] == [7, 2]
