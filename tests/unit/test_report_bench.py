"""The figures of `bench.switch`, on runs whose costs are known."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from bench.switch import (
    SETTLE_STEPS,
    Run,
    Throughput,
    all_pairs,
    compared,
    copies_between,
    growth,
    joined,
    lost_seconds,
    pooled_cost,
    staged,
    summary,
)
from splash.core.events import StepDone, SwitchDone
from splash.engine.report import Boundary
from splash.layout.layouts import LAYOUTS

FORWARD, BOUNDARY = 0.1, 0.001


def test_all_pairs_are_walked_once_and_chained() -> None:
    """Red when a pair is left out, doubled, or does not begin where the one before ended."""
    pairs = all_pairs(list(LAYOUTS))
    assert sorted(pairs) == sorted((a, b) for a in LAYOUTS for b in LAYOUTS if a != b)
    assert all(a[1] == b[0] for a, b in pairwise(pairs))
    assert pairs[0][0] == pairs[-1][1]


def _run(*, slow: float = 0.0, flip: float = 0.0) -> tuple[list[StepDone], SwitchDone]:
    """16 rows in tp; from step 21 on the copies of a switch slow five steps, the flip before step 26 costs `flip`,
    and dp steps take half the time."""
    steps, t = [], 0.0
    for index in range(60):
        forward = FORWARD * (0.5 if index >= 26 else 1.0) * (1 + (slow if 21 <= index < 26 else 0.0))
        boundary = BOUNDARY + (flip if index == 26 else 0.0)
        t += boundary + forward
        rows = {"dp" if index >= 26 else "tp": 16}
        steps.append(StepDone(t, index, forward, boundary, 16, 0, rows, [16, 16], 16 * (index == 26), 16))
    return steps, SwitchDone(t, 27, "tp", "dp", "", "done", 7, 16, 100, 0, 1.0, 0.0)


@pytest.mark.parametrize("slow", [0.0, 0.1])
@pytest.mark.parametrize("flip", [0.0, 0.004])
def test_what_a_switch_takes(slow: float, flip: float) -> None:
    """Red when a slower step, or a longer boundary, is not counted, or the faster layout is taken for a gain."""
    steps, switch = _run(slow=slow, flip=flip)
    assert lost_seconds(steps, switch) == pytest.approx(flip + 5 * FORWARD * slow, abs=1e-9)
    (found,) = staged(steps, [switch], range(21, 26))
    steady = FORWARD + BOUNDARY
    assert found.others == pytest.approx([steady])
    assert found.before == pytest.approx([steady] * len(found.before))
    assert found.beside == pytest.approx([steady + slow * FORWARD] * 5)
    figures = summary(Run(256, 16, tuple(steps), (switch,), tuple(range(21, 26)), 20.0, {}))
    assert figures["copying_throughput"]["share"] == pytest.approx(steady / found.beside[0])
    assert figures["copies_between"]["median_s"] == pytest.approx(0.0), "they slow the passes here"
    assert figures["staging_throughput"]["share"] == pytest.approx(
        6 * steady / (5 * found.beside[0] + steady)
    )
    assert figures["switch_cost"]["excess_s"] == pytest.approx(flip, abs=1e-9)
    parts = figures["switch_cost"]["excess_between"], figures["switch_cost"]["excess_of_first_step"]
    assert [part["median_s"] for part in parts] == pytest.approx([flip, 0.0], abs=1e-9)
    assert figures["lost_request_s"]["drain_and_restart"] == 320.0
    (pair,) = [p for p in figures["pairs"] if p["switches"]]
    assert (pair["from"], pair["to"], pair["flips"]) == ("tp", "dp", 1)
    assert SETTLE_STEPS < 20


def test_copies_between_passes_are_told_from_flips() -> None:
    """Red when a boundary with a flip, or one without copies, counts as one with copies."""
    steps, _ = _run(flip=0.5)
    steps = [replace(s, boundary_s=s.boundary_s + 0.004 * (s.step in (22, 23, 24, 26))) for s in steps]
    assert copies_between(steps, {22, 23, 24, 26}).median_s == pytest.approx(0.004)
    assert copies_between(steps, ()).median_s == 0.0


def test_throughput_is_of_means_and_each_switch_is_judged_by_its_own_steps_before() -> None:
    """Red when medians hide few slow steps, one base serves all switches, or the interval leaves the figure out."""
    parts = [([1.0, 1.2], [1.1] * 9 + [3.1]), ([2.0, 2.0], [2.0] * 9 + [3.0]), ([5.0], [])]
    found = Throughput.of(parts)
    assert found.share == pytest.approx((11 + 20) / (13 + 21))
    assert found.typical == pytest.approx(1.0)
    assert found.low == pytest.approx(11 / 13)
    assert found.high == pytest.approx(20 / 21)
    assert Throughput.of([([1.0], [])]) == Throughput()


def test_the_interval_of_a_difference_of_medians_narrows_with_more_boundaries() -> None:
    """Red when the interval says the spread of boundaries instead of how well their medians are known."""
    widths = []
    for count in (20, 500):
        costs = [0.01 * number / count for number in range(count)]
        found = [
            Boundary(n, flips, cost + 0.002 * flips, 0.0) for flips in (0, 1) for n, cost in enumerate(costs)
        ]
        excess = compared(found, lambda b: b.cost_s)
        assert excess.median_s == pytest.approx(0.002)
        assert excess.low_s < 0.002 < excess.high_s
        widths.append(excess.high_s - excess.low_s)
    assert widths[1] < widths[0] / 3


def _at(context: int, flip: float) -> Run:
    steps, switch = _run(flip=flip)
    return Run(context, 16, tuple(steps), (switch,), (21, 22), None, {})


def test_runs_of_a_context_are_judged_together() -> None:
    """Red when a run that is read back differs, a second one is taken for the continuation of the first, or its
    switch is looked for among the first one's steps."""
    first, second = _at(256, 0.004), Run.from_json(_at(256, 0.004).to_json())
    assert second == first
    (both,) = joined([first, second])
    figures = summary(both)
    assert figures["switch_cost"]["flips"] == 2
    assert figures["switch_cost"]["nulls"] == 2 * summary(first)["switch_cost"]["nulls"]
    assert figures["switch_cost"]["excess_s"] == pytest.approx(0.004)
    (pair,) = [p for p in figures["pairs"] if p["switches"]]
    assert (pair["switches"], pair["flips"]) == (2, 2)


def test_contexts_are_pooled_and_compared() -> None:
    """Red when the pooled cost leaves a context out, or the growth is taken the wrong way round."""
    runs = joined([_at(2048, 0.006), _at(256, 0.002), _at(256, 0.002)])
    assert pooled_cost(runs)["flips"] == 3
    assert pooled_cost(runs)["excess_s"] == pytest.approx(0.002)
    (row,) = growth([summary(run) for run in runs])
    assert row["contexts"] == [256, 2048]
    assert row["ratio"] == pytest.approx(3.0)
