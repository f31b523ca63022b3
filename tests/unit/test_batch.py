"""Which prompt rows a step takes, by which method, and when the threshold policy changes its mind."""

from __future__ import annotations

from itertools import pairwise

import pytest

from splash.core.params import SamplingParams
from splash.core.request import Request
from splash.layout.layouts import Assignment, layout_named
from splash.layout.rows import Method
from splash.sched.batch import RowBytes, chunk_method, share_budget
from splash.sched.policy import Load, ThresholdPolicy, Thresholds
from splash.sched.record import Record


def record(request: int, remaining: int) -> Record:
    return Record(
        Request(request, tuple(range(remaining)), SamplingParams()),
        goal=Assignment(layout_named("tp")),
        seed=0,
        stops=frozenset(),
        max_model_len=10**6,
        forced=(),
    )


def test_a_short_request_is_not_held_up_by_a_long_prompt() -> None:
    shares = share_budget([record(0, 100_000), record(1, 30), record(2, 50)], 512, 512)
    assert [(r.id, n) for r, n in shares] == [(0, 432), (1, 30), (2, 50)]


def test_a_long_prompt_is_not_starved_by_short_ones() -> None:
    many = [record(0, 10_000)] + [record(i, 400) for i in range(1, 20)]
    shares = {r.id: n for r, n in share_budget(many, 512, 512)}
    assert shares[0] >= 256
    assert sum(shares.values()) == 512


@pytest.mark.parametrize("budget", [1, 2, 7, 512])
@pytest.mark.parametrize("max_chunk", [1, 5, 600])
@pytest.mark.parametrize("sizes", [[1], [5, 1], [600, 600, 3]])
def test_shares_respect_every_bound(budget: int, max_chunk: int, sizes: list[int]) -> None:
    records = [record(i, n) for i, n in enumerate(sizes)]
    shares = share_budget(records, budget, max_chunk)
    assert shares
    assert sum(n for _, n in shares) <= budget
    assert all(1 <= n <= min(max_chunk, r.remaining) for r, n in shares)


def test_methods_by_cost() -> None:
    row = RowBytes(exchange=16 * 1088, gather=576)  # 16 heads
    at = {name: Assignment(layout_named(name), 1) for name in ("tp", "dp", "cp", "dop", "dcp")}
    assert chunk_method(at["tp"], 10**6, 512, row, 4) is Method.LOCAL
    assert chunk_method(at["dp"], 10**6, 512, row, 4) is Method.LOCAL
    for name in ("cp", "dop", "dcp"):
        assert chunk_method(at[name], 0, 512, row, 4) is Method.GATHER, "no history: nothing travels"
        assert chunk_method(at[name], 10**6, 64, row, 4) is Method.EXCHANGE, "a short chunk, a long history"
    # the busiest rank: an owner receives 1/T of what striped ranks do
    history = 512 * row.exchange // row.gather
    assert chunk_method(at["dcp"], history, 512, row, 4) is Method.GATHER
    assert chunk_method(at["dop"], history, 512, row, 4) is Method.EXCHANGE


def load(step: int, *, running: int = 2, length: int = 50, target: str = "tp", **changes: object) -> Load:
    values = {
        "step": step,
        "lengths": [length] * running,
        "outputs": [10] * running,
        "prompts": [],
        "waiting": [],
        "memory_bound": False,
        "target": target,
        "copy_bytes_per_s": 1e9,
        **changes,
    }
    return Load(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "target"),
    [
        ({"running": 20}, "dp"),
        ({"running": 20, "memory_bound": True}, "dop"),
        ({"length": 900}, "dcp"),
        ({"waiting": [4000]}, "cp"),
        ({"prompts": [(100, 600)]}, "cp"),
        ({"target": "dp"}, "tp"),
    ],
)
def test_thresholds(changes: dict[str, object], target: str) -> None:
    policy = ThresholdPolicy(Thresholds(confirm_asks=3, dwell_steps=10))
    answers = [policy.decide(load(i, **changes)) for i in range(3)]
    assert answers[:2] == [None, None], "a wish must be confirmed"
    assert answers[2] is not None
    assert answers[2].target == target
    assert answers[2].reason


def test_no_flapping() -> None:
    policy = ThresholdPolicy(Thresholds(confirm_asks=1, dwell_steps=50))
    decisions = []
    target = "tp"
    for step in range(100):
        decision = policy.decide(load(step, running=20 if step % 2 else 2, target=target))
        if decision is not None:
            target = decision.target
            decisions.append(step)
    assert all(b - a >= 50 for a, b in pairwise(decisions))
