"""Results: the latencies are what their definitions say, and the JSON has the promised shape."""

from __future__ import annotations

import json
from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from splash.sim.result import (
    Distribution,
    Percentiles,
    RequestTimes,
    RunResult,
    Targets,
    results_json,
    run_result,
)
from tests.sim.results_made import run


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 5)), min_size=1, max_size=12))
def test_counted_percentiles_are_those_of_the_list(pairs: list[tuple[int, int]]) -> None:
    """Red when percentiles of values with counts differ from those of the same values written out."""
    values, counts = [float(value) for value, _ in pairs], [count for _, count in pairs]
    written_out = np.repeat(values, counts)
    expected = (written_out.mean(), *np.percentile(written_out, (50, 90, 95, 99)))
    assert astuple(Percentiles.of(values, counts)) == pytest.approx(expected)
    assert astuple(Percentiles.of(written_out)) == pytest.approx(expected)
    assert sum(Distribution.of(values, counts).counts) == len(written_out)


def test_nothing_has_no_percentiles() -> None:
    """Red when an empty set gets a number."""
    assert astuple(Percentiles.of([])) == (None,) * 5


def test_latencies_follow_their_definitions() -> None:
    """Red when TTFT is not from arrival, TPOT divides by n, or E2E leaves the wait out."""
    request = RequestTimes(arrival_s=2, first_token_s=3, last_token_s=7, prompt_tokens=9, output_tokens=5)
    assert (request.ttft_s, request.tpot_s, request.e2e_s) == (1, 1, 5)
    assert RequestTimes(2, 3, 3, 9, 1).tpot_s is None


@pytest.mark.parametrize(
    ("targets", "good"),
    [(Targets(1, 1), 2), (Targets(0.9, None), 0), (Targets(None, 0.9), 1), (Targets(1, 0.9), 1)],
)
def test_goodput_counts_requests_that_meet_both_targets(targets: Targets, good: int) -> None:
    """Red when one target is enough, or a request of one token is held to a TPOT."""
    done = [RequestTimes(2, 3, 7, 9, 5), RequestTimes(2, 3, 3, 9, 1), RequestTimes(2, 4, 12, 9, 5)]
    result = _result(done, targets)
    assert result.goodput_requests_per_s == pytest.approx(good / 10)
    assert _result(done, Targets()).goodput_requests_per_s is None


def test_throughput_is_over_the_makespan() -> None:
    """Red when the time before the first arrival counts, or prompt tokens are taken for output."""
    result = _result([RequestTimes(2, 3, 7, 100, 5), RequestTimes(4, 5, 12, 100, 25)], Targets())
    assert (result.makespan_s, result.output_tokens, result.prompt_tokens) == (10, 30, 200)
    assert result.output_tokens_per_s == 3
    assert result.itl_s.p50 == 0.5


def test_json_has_the_promised_shape() -> None:
    """Red when a key that scripts rely on is renamed, or a value is not plain data."""
    data = json.loads(json.dumps(results_json([run(), run("tp")]), allow_nan=False))
    for found, layout in zip(data["runs"], ("auto", "tp"), strict=True):
        assert found["layout"] == layout
        assert found["makespan_s"] > 0
        assert found["output_tokens_per_s"] > 0
        for latency in ("ttft_s", "tpot_s"):
            assert found[latency]["p50"] <= found[latency]["p99"]
        assert [switch["to"] for switch in found["switches"]] == ["dop", "tp"]
        assert sum(found["time_share"].values()) == pytest.approx(1)


def _result(done: list[RequestTimes], targets: Targets) -> RunResult:
    return run_result(
        "tp",
        requests=done,
        gaps={0.5: 3, 1.0: 1},
        targets=targets,
        preemptions=0,
        time_share={"tp": 1.0},
        switches=(),
        samples=(),
        decisions=0,
        steps=1,
        wall_s=0.0,
    )
