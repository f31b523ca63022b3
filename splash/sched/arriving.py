"""Prompts, cut into the steps that will compute them: those at hand, and those that are likely to come.

A layout's price of a prompt depends on how long it is and on what shares its step: owners are as busy as the longest
prompt makes one of them, and the last tokens of a long prompt see all others. So prompts are not averaged: a few steps
are drawn from them as they are, evenly over their tokens, and stand for the rest.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import itemgetter
from typing import NamedTuple

KNOWN, LIKELY = 2, 1
"""Steps that stand for all, of prompts at hand and of those that are likely to come."""
MAX_CHUNKS = 8
"""Chunks of one step; more are as good as these, only shorter."""
GOLDEN = (5**0.5 - 1) / 2
"""Multiples of it, modulo 1, are spread evenly however many there are."""


class Arrived(NamedTuple):
    """A request that came of late."""

    step: int
    """The first that could have computed it."""
    length: int
    """Tokens of its prompt."""


class Piece(NamedTuple):
    """Rows [start, start + rows) of a prompt of `length` tokens."""

    start: int
    rows: int
    length: int


Step = tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Prompts:
    """Prompt tokens, and steps drawn from those that will compute them."""

    tokens: float = 0.0
    steps: tuple[Step, ...] = ()
    drawn: int = 0
    """Tokens of the steps."""
    seen: float = 0.0
    """Share of the prompts at hand of which some rows were drawn."""

    @classmethod
    def of(cls, tokens: float, steps: Iterable[Step], count: int = 0) -> Prompts:
        """`count`: prompts at hand."""
        drawn = tuple(steps)
        seen = min(1.0, sum(map(len, drawn)) / count) if count else 0.0
        return cls(tokens, drawn, sum(piece.rows for step in drawn for piece in step), seen)


NONE = Prompts()


def at_hand(unfinished: Sequence[tuple[int, int]], budget: int) -> Prompts:
    """Prompts of which (computed, left) tokens are known, some left of each, in the order in which they will be
    computed."""
    ends = list(accumulate(map(itemgetter(1), unfinished)))
    if not ends:
        return NONE
    num_steps = -(-ends[-1] // budget)
    drawn = min(num_steps, KNOWN)
    places = (int(num_steps * (number + 0.5) / drawn) * budget for number in range(drawn))
    steps = (tuple(_cut(unfinished, ends, place, budget)) for place in places)
    return Prompts.of(ends[-1], steps, len(unfinished))


def coming(arrived: Sequence[Arrived], step: int, window: float, budget: int, turn: int) -> Prompts:
    """What will come within `window` steps from `step` on: as much in a step as came since the first of `arrived`, as
    many at once as came at once. What comes is expected to go on for as long as it has, and a silence too.
    Each `turn` draws other steps."""
    if not arrived:
        return NONE
    silence, since = step - arrived[-1].step, step - arrived[0].step
    ends = list(accumulate(map(itemgetter(1), arrived)))
    expected = ends[-1] * max(0.0, min(window, since) - silence) / max(1, since)
    if expected < 1:
        return NONE
    steps: list[Step] = []
    for crowd, place in _drawn(arrived, ends, turn):
        filled = list(_filled((Piece(0, length, length) for _, length in crowd), budget))
        steps.append(filled[int(place * len(filled))])
    return Prompts.of(expected, steps)


def _cut(
    unfinished: Sequence[tuple[int, int]], ends: Sequence[int], place: int, budget: int
) -> Iterator[Piece]:
    """The step that computes the `budget` tokens from the `place`-th on of those that are left; `ends` sums these."""
    index = bisect_right(ends, place)
    last = index + MAX_CHUNKS
    for (done, left), end in zip(unfinished[index:last], ends[index:last], strict=True):
        skipped = max(0, place - (end - left))
        count = min(left - skipped, place + budget - max(place, end - left))
        if count <= 0:
            return
        yield Piece(done + skipped, count, done + left)


def _filled(pieces: Iterable[Piece], budget: int) -> Iterator[Step]:
    """Steps of at most `budget` rows and MAX_CHUNKS pieces, in order."""
    filling: list[Piece] = []
    room = budget
    for piece in pieces:
        start, left, length = piece.start, piece.rows, piece.length
        while left:
            count = min(left, room)
            filling.append(Piece(start, count, length))
            start, left, room = start + count, left - count, room - count
            if not room or len(filling) == MAX_CHUNKS:
                yield tuple(filling)
                filling, room = [], budget
    if filling:
        yield tuple(filling)


def _drawn(
    arrived: Sequence[Arrived], ends: Sequence[int], turn: int
) -> Iterator[tuple[Sequence[Arrived], float]]:
    """LIKELY of the crowds that came at once, evenly over their tokens, and where in each (of 1). `ends` sums all."""
    begin = turn * GOLDEN % 1
    for number in range(LIKELY):
        place = ends[-1] * (number + begin) / LIKELY
        step = arrived[bisect_right(ends, place)].step
        first, last = bisect_left(arrived, (step,)), bisect_left(arrived, (step + 1,))
        crowd = arrived[first:last]
        yield crowd, 1 - (ends[last - 1] - place) / sum(length for _, length in crowd)
