"""What it takes to go from one target to another with the load at hand."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from splash.layout.change import Change
from splash.layout.layouts import DP, TP, Placement, Projection
from splash.sched.limits import Limits
from splash.sched.policy import Load
from splash.sched.target import Target


def crossing(load: Load, new: Target, limits: Limits, ranks: int) -> Change:
    """What moves when all that is held goes from the present target to `new`."""
    old, held = load.present, _held(load)
    tokens: Counter[tuple[Placement, Placement]] = Counter()
    bounds = sorted({0, old.striped_from or 0, new.striped_from or 0})
    from_there = [sum([n for n in held if n >= bound]) if bound else sum(held) for bound in bounds]
    for bound, (tokens_from, longer) in zip(bounds, pairwise([*from_there, 0]), strict=True):
        tokens[old.layout_of(bound).placement, new.layout_of(bound).placement] += tokens_from - longer
    fetches = new.layout.projection is Projection.FULL and old.layout.projection is not Projection.FULL
    return Change(
        ranks=ranks,
        groups=limits.groups,
        token_bytes=limits.token_bytes,
        tokens=tokens,
        shards=ranks - 1 if fetches else 0,
        shard_bytes=limits.shard_bytes,
    )


def peak_share(load: Load, new: Target, change: Change, limits: Limits) -> float:
    """Of a rank's room for KV, what is taken at the peak of the change, at least: requests may move one at a time, the
    shortest first, but each is held twice meanwhile. Above 1 the change cannot begin."""
    shortest = min(_held(load), default=0)
    full = load.present.layout.projection is new.layout.projection is Projection.FULL
    room = limits.room[DP.name if full else TP.name]
    tokens = room.tokens - load.running * room.state_tokens
    on_a_rank = tokens * limits.token_bytes / (change.ranks if full else change.groups)
    return change.peak_bytes(shortest) / on_a_rank if on_a_rank > 0 else float("inf")


def _held(load: Load) -> list[int]:
    """Tokens that each running request holds."""
    return [*load.lengths, *(done for done, _ in load.prompts)]
