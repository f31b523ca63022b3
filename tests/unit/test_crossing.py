"""What moves between two targets, added up by bounds against request after request."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splash.layout.layouts import LAYOUTS, Placement
from splash.sched.batch import RowBytes
from splash.sched.crossing import crossing
from splash.sched.limits import Limits, Room
from splash.sched.policy import Load
from splash.sched.target import Target, target_named

LENGTHS = st.lists(st.integers(1, 5000), min_size=1, max_size=12)
BOUNDS = st.sampled_from((None, 64, 512, 4096))
LIMITS = Limits(
    room={name: Room(10**6, 10**6) for name in LAYOUTS},
    max_running=100,
    token_budget=512,
    row_bytes=RowBytes(16, 2),
    token_bytes=1,
    groups=1,
    shard_bytes=0,
)


def one_by_one(lengths: list[int], old: Target, new: Target) -> Counter[tuple[Placement, Placement]]:
    tokens: Counter[tuple[Placement, Placement]] = Counter()
    for length in lengths:
        tokens[old.layout_of(length).placement, new.layout_of(length).placement] += length
    return tokens


@given(LENGTHS, st.sampled_from(list(LAYOUTS)), BOUNDS, st.sampled_from(list(LAYOUTS)), BOUNDS)
def test_what_is_held_moves_as_request_after_request_does(
    lengths: list[int], old: str, old_bound: int | None, new: str, new_bound: int | None
) -> None:
    """Red when a request is counted on the wrong side of a bound, or twice."""
    before, after = target_named(old, old_bound), target_named(new, new_bound)
    load = Load(
        step=9,
        lengths=lengths,
        outputs=[1] * len(lengths),
        prompts=[],
        waiting=[],
        memory_bound=False,
        target=old,
        copy_bytes_per_s=1e9,
        striped_from=before.striped_from,
    )
    change = crossing(load, after, LIMITS, ranks=4)
    assert +Counter(change.tokens) == one_by_one(lengths, before, after)
    assert sum(change.tokens.values()) == pytest.approx(sum(lengths))
