"""Distributions of prompt and output lengths, drawn from a generator that is handed in."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float64]
"""Standard normal numbers."""
Lengths = NDArray[np.int64]
"""Tokens, at least 1."""


@dataclass(frozen=True, slots=True)
class Lognormal:
    """Lengths whose logarithm is normal, given by the mean and standard deviation of the lengths themselves."""

    mean: float
    sd: float

    def at(self, scores: Scores) -> Lengths:
        """The length at each normal score."""
        variance = math.log1p((self.sd / self.mean) ** 2)
        middle = math.log(self.mean) - variance / 2
        return _whole(np.exp(middle + math.sqrt(variance) * scores))

    def draw(self, rng: np.random.Generator, count: int) -> Lengths:
        return self.at(rng.standard_normal(count))


@dataclass(frozen=True, slots=True)
class LogUniform:
    """Lengths between two ends, each doubling equally likely."""

    shortest: int
    longest: int

    def draw(self, rng: np.random.Generator, count: int) -> Lengths:
        drawn = np.exp(rng.uniform(math.log(self.shortest), math.log(self.longest), count))
        return np.clip(_whole(drawn), self.shortest, self.longest)


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Lengths through given quantiles: between two of them the logarithm is linear in the normal score."""

    scores: tuple[float, ...]
    lengths: tuple[int, ...]

    def at(self, scores: Scores) -> Lengths:
        """The length at each normal score; beyond the ends, the length at the end."""
        return _whole(np.exp(np.interp(scores, self.scores, np.log(self.lengths))))


def correlated_scores(rng: np.random.Generator, *, groups: int, samples: int, rho: float) -> Scores:
    """Normal scores [groups, samples]; two of a group have the correlation `rho`, others none (Gaussian copula)."""
    common = rng.standard_normal((groups, 1))
    own = rng.standard_normal((groups, samples))
    return math.sqrt(rho) * common + math.sqrt(1 - rho) * own


def _whole(lengths: Scores) -> Lengths:
    return np.maximum(1, np.rint(lengths)).astype(np.int64)


CHAT_PROMPT = Lognormal(mean=1155, sd=1109)
CHAT_OUTPUT = Lognormal(mean=211, sd=163)
"""Mean and deviation of the Azure conversation trace of 2023-11-16 (19,366 requests; Splitwise, ISCA'24)."""

MATHS_PROMPT = Lognormal(mean=141, sd=61)
"""Prompts of RL rollouts on maths problems (PolyTrace's logs)."""

REASONING_OUTPUT = Quantiles(
    scores=(-2.326, -1.282, -0.674, 0.0, 0.674, 1.282, 1.645, 2.326, 4.0),
    lengths=(138, 290, 480, 1014, 2563, 5423, 7858, 15063, 32768),
)
"""Outputs of a reasoning model in production at p1, p10, p25, p50, p75, p90, p95, p99 and the longest
(ServeGen's DeepSeek-R1 clients, weighted by rate, arXiv 2505.09999; below p50, a batch derived from it)."""
