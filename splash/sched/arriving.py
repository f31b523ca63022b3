"""Prompts, cut into the steps that will compute them: those at hand, and those that are likely to come.

A layout's price of a prompt depends on how long it is and on what shares its step: owners are as busy as the longest
prompt makes one of them, and the last tokens of a long prompt see all others. So prompts are not averaged: a step is
drawn from them as they are, another one for each question, evenly over their tokens, and stands for the rest.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import itemgetter
from typing import NamedTuple

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
    """Prompt tokens, and a step drawn from those that will compute them."""

    tokens: float = 0.0
    step: Step = ()
    """Without a piece if there are no tokens."""
    drawn: int = 0
    """Tokens of the step."""
    seen: float = 0.0
    """Share of the prompts at hand of which some rows were drawn."""

    @classmethod
    def of(cls, tokens: float, step: Step, count: int = 0) -> Prompts:
        """`count`: prompts at hand."""
        seen = min(1.0, len(step) / count) if count else 0.0
        return cls(tokens, step, sum(piece.rows for piece in step), seen)


NONE = Prompts()


def at_hand(begun: Sequence[tuple[int, int]], waiting: Sequence[int], budget: int, turn: int) -> Prompts:
    """Prompts of which (computed, left) tokens are known, some left of each, and after them whole ones of so many
    tokens, in the order in which they will be computed. Each `turn` draws another step."""
    ends = list(accumulate([*(left for _, left in begun), *waiting]))
    if not ends:
        return NONE
    num_steps = -(-ends[-1] // budget)
    place = int(num_steps * _drawn(turn)) * budget
    return Prompts.of(ends[-1], tuple(_cut(begun, ends, place, budget)), len(ends))


def coming(arrived: Sequence[Arrived], step: int, window: float, budget: int, turn: int) -> Prompts:
    """What will come within `window` steps from `step` on: as much in a step as came since the first of `arrived`, as
    many at once as came at once. What comes is expected to go on for as long as it has, and a silence too.
    Each `turn` draws another step."""
    if not arrived:
        return NONE
    silence, since = step - arrived[-1].step, step - arrived[0].step
    ends = list(accumulate(map(itemgetter(1), arrived)))
    expected = ends[-1] * max(0.0, min(window, since) - silence) / max(1, since)
    if expected < 1:
        return NONE
    crowd, share = _crowd(arrived, ends, turn)
    filled = list(_filled((Piece(0, length, length) for _, length in crowd), budget))
    return Prompts.of(expected, filled[int(share * len(filled))])


def _cut(begun: Sequence[tuple[int, int]], ends: Sequence[int], place: int, budget: int) -> Iterator[Piece]:
    """The step that computes the `budget` tokens from the `place`-th on of those that are left; `ends` sums these."""
    first = bisect_right(ends, place)
    for index in range(first, min(first + MAX_CHUNKS, len(ends))):
        end = ends[index]
        begin = ends[index - 1] if index else 0
        done = begun[index][0] if index < len(begun) else 0
        skipped = max(0, place - begin)
        count = min(end, place + budget) - begin - skipped
        if count <= 0:
            return
        yield Piece(done + skipped, count, done + end - begin)


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


def _crowd(arrived: Sequence[Arrived], ends: Sequence[int], turn: int) -> tuple[Sequence[Arrived], float]:
    """Those that came at once with the one at some place of all tokens, and where among theirs that is (of 1). `ends`
    sums all."""
    place = ends[-1] * _drawn(turn)
    step = arrived[bisect_right(ends, place)].step
    first, last = bisect_left(arrived, (step,)), bisect_left(arrived, (step + 1,))
    crowd = arrived[first:last]
    return crowd, 1 - (ends[last - 1] - place) / sum(length for _, length in crowd)


def _drawn(turn: int) -> float:
    """A place of [0, 1)."""
    return turn * GOLDEN % 1
