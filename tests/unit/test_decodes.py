"""The rows of decodes by place, through what can happen to requests within one step."""

from __future__ import annotations

from collections import Counter

import pytest

from splash.core.params import SamplingParams
from splash.core.request import Request
from splash.layout.layouts import DOP, TP, assigned
from splash.sched.decodes import Decodes
from splash.sched.record import Record


def decoding(request_id: int) -> Record:
    record = Record(
        Request(request_id, (1, 2), SamplingParams(), arrival_s=0.0),
        goal=assigned(DOP, request_id % 2),
        seed=0,
        stops=frozenset(),
        max_model_len=64,
        forced=(),
    )
    record.present, record.decoding = record.goal, True
    return record


@pytest.mark.parametrize("counted", [True, False])
def test_one_that_leaves_is_taken_from_the_counts_once(counted: bool) -> None:
    """Red when a request that is preempted in the step in which another began to decode, before rows were counted, is
    subtracted from a count that never had it."""
    running = {number: decoding(number) for number in range(5)}
    decodes = Decodes(running)
    decodes.disturb()
    decodes.settle(0)
    if counted:
        assert decodes.places == {assigned(DOP, 0): 3, assigned(DOP, 1): 2}
    gone = running.pop(4)
    decodes.leave(gone)
    gone.decoding, gone.present = False, assigned(TP, 0)  # admitted anew, elsewhere
    decodes.settle(1)
    assert decodes.ids == (0, 2, 1, 3)
    assert decodes.places == Counter(record.present for record in decodes.records)
