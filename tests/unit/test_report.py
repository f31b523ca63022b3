"""The report against a run whose timings are known: what counts as latency, throughput, and the cost of a flip."""

from dataclasses import replace

import pytest

from splash.core.events import (
    FirstToken,
    RequestArrived,
    RequestFinished,
    RequestPreempted,
    StepDone,
    SwitchDone,
    TargetRefused,
)
from splash.engine.percentiles import percentile
from splash.engine.report import MIN_FLIPS, RunReport, boundaries, cost_of, switch_cost


def _step(
    index: int,
    *,
    forward: float = 0.1,
    boundary: float = 0.001,
    flips: int = 0,
    layout: str = "tp",
    rows: int = 4,
) -> StepDone:
    return StepDone(0.1 * index, index, forward, boundary, rows, 0, {layout: rows}, [rows, rows], flips, rows)


def _chunk(index: int, *, forward: float) -> StepDone:
    return StepDone(0.1 * index, index, forward, 0.001, 1, 64, {"tp": 65}, [65, 65], 0, 1)


def test_percentiles_interpolate() -> None:
    """Red when a percentile rounds to a neighbour or fails on few values."""
    assert percentile([], 50) is None
    assert percentile([3.0], 95) == 3.0
    assert percentile([1.0, 3.0], 50) == 2.0
    assert percentile([4.0, 1.0, 2.0, 3.0], 95) == pytest.approx(3.85)


def test_a_boundary_counts_the_excess_of_the_step_after_it() -> None:
    """Red when a flip hides its price in the step that follows, or when another layout's step time is blamed on it."""
    before = [_step(i) for i in range(10)]
    flip = _step(10, forward=0.23, boundary=0.004, flips=4, layout="dp")
    after = [_step(i, forward=0.2, layout="dp") for i in range(11, 20)]
    steps = [*before, flip, *after]
    cost = cost_of(boundaries(steps), [s.forward_s for s in steps])
    assert cost["flips"] == 1
    assert cost["flip_s"]["p50"] == pytest.approx(0.004 + 0.03)
    assert cost["null_s"]["p50"] == pytest.approx(0.001)
    assert cost["excess_s"] == pytest.approx(0.033)
    assert cost["excess_share"] == pytest.approx(0.033 / cost["step_s_p50"])


def test_few_flips_have_no_price() -> None:
    """Red when the JSON has a figure of noise where the table says that there are too few flips to tell."""
    steps = [_step(i, boundary=0.004 if i % 2 else 0.001, flips=i % 2) for i in range(2 * MIN_FLIPS)]
    few, enough = switch_cost(steps[:-1]), switch_cost(steps)
    assert few["flips"] == MIN_FLIPS - 1
    assert few["flip_s"]["p50"] == pytest.approx(0.004)
    assert (few["excess_s"], few["excess_share"]) == (None, None)
    assert enough["flips"] == MIN_FLIPS
    assert enough["excess_s"] == pytest.approx(0.003)


def test_boundaries_compare_like_with_like() -> None:
    """Red when idle gaps, prompt chunks or another number of rows count as a boundary's cost."""
    small = [_step(i, rows=1, forward=0.01) for i in range(6)]
    large = [_step(i, rows=64, forward=0.5) for i in range(6, 12)]
    after_idling = _step(12, rows=1, forward=0.01, boundary=0.0)
    after_ticks = _step(15, rows=1, forward=0.01, boundary=0.7)
    found = boundaries([*small, *large, after_idling, _chunk(13, forward=3.0), after_ticks])
    assert [b.step for b in found] == list(range(1, 12))
    assert all(b.cost_s == pytest.approx(0.001) for b in found)


def test_a_step_between_two_layouts_is_compared_with_its_like() -> None:
    """Red when steps with few rows in the slow layout are held against those with many."""
    steps = []
    for index in range(40):
        slow = index // 10
        rows = {"tp": 4 - slow, "dp": slow + 1}
        step = _step(index, rows=5, forward=0.1 + 0.02 * slow)
        steps.append(replace(step, rows_by_layout=rows))
    assert all(b.cost_s == pytest.approx(0.001) for b in boundaries(steps))


def test_no_flips_no_figures() -> None:
    """Red when a run without flips, or without steps, divides by nothing."""
    assert switch_cost([])["step_s_p50"] is None
    cost = switch_cost([_step(0), _step(1)])
    assert cost["flip_s"] == {"p50": None, "p95": None}
    assert cost["excess_share"] is None


def test_a_run_is_summed_up() -> None:
    """Red when throughput, latencies or finish reasons count what they should not (CASES 49)."""
    report = RunReport()
    report.event(RequestArrived(1.0, 0, 10, 3))
    report.event(RequestArrived(2.0, 1, 20, 1))
    report.event(RequestArrived(2.0, 2, 5, 9))
    for token, t in ((11, 1.5), (12, 1.75), (13, 2.0)):
        if token == 11:
            report.event(FirstToken(t, 0, 0.5))
        report.output(0, [token], f"<{token}>", "length" if token == 13 else None)
    report.event(RequestFinished(2.0, 0, "length", 3, 0.5, 0.25))
    report.event(FirstToken(3.0, 1, 1.0))
    report.output(1, [7], "x", "stop")
    report.event(RequestFinished(3.0, 1, "stop", 1, 1.0, None))
    report.event(RequestPreempted(3.0, 2, 5))
    report.output(2, [], "", "abort")
    report.event(RequestFinished(5.0, 2, "abort", 0, None, None))
    report.event(SwitchDone(4.0, 9, "tp", "dp", "many", "done", 5, 2, 4096, 1024, 0.5, 0.002))
    report.event(TargetRefused(4.5, 9, "cp", "too big"))
    data = report.to_json()

    first, second, third = data["requests"]
    assert first["token_ids"] == [11, 12, 13]
    assert first["text"] == "<11><12><13>"
    assert (first["ttft_s"], first["tpot_s"], first["finish_reason"]) == (0.5, 0.25, "length")
    assert (second["ttft_s"], second["tpot_s"], second["finish_reason"]) == (1.0, None, "stop")
    assert (third["ttft_s"], third["tpot_s"], third["finish_reason"]) == (None, None, "abort")
    assert third["preemptions"] == 1
    (switch,) = data["switches"]
    expected = {"from": "tp", "to": "dp", "reason": "many", "steps": 5, "requests": 2, "bytes_received": 4096}
    assert switch.items() >= expected.items()
    assert (switch["started_step"], switch["ended_step"]) == (4, 9)
    assert data["refused"] == [{"step": 9, "target": "cp", "reason": "too big"}]
    summary = data["summary"]
    assert summary["output_tokens_per_s"] == pytest.approx(4 / 4.0)
    assert summary["finish_reasons"] == {"length": 1, "stop": 1, "abort": 1}
    assert summary["ttft_s"]["p50"] == 0.75
    assert summary["tpot_s"]["p50"] == 0.25


def test_who_never_arrived_is_counted_apart() -> None:
    """Red when an interrupted run says that it aborted requests that were not due yet, or forgets those refused."""
    report = RunReport()
    report.event(RequestArrived(1.0, 0, 10, 3))
    report.event(RequestFinished(2.0, 0, "abort", 1, 0.5, None))
    for request, error in ((0, None), (1, "too long"), (2, None), (3, None)):
        report.output(request, (), "", "abort", error)
    data = report.to_json()
    assert [r["finish_reason"] for r in data["requests"]] == ["abort", "abort", None, None]
    assert data["summary"]["finish_reasons"] == {"abort": 2}
    assert (data["summary"]["requests"], data["summary"]["never_arrived"]) == (2, 2)


def test_a_switch_after_the_last_step_is_none() -> None:
    """Red when a switch that no request met counts as one of the run's, or one before the last step does not."""
    report = RunReport()
    for index in range(3):
        report.event(_step(index))
    for began in (2, 3):
        report.event(SwitchDone(4.0, began + 5, "tp", "dp", "why", "done", 5, 0, 0, 1024, 0.5, 0.0))
    data = report.to_json()
    assert [switch["started_step"] for switch in data["switches"]] == [2]
    assert data["summary"]["switches"] == 1


def test_layout_shares_add_up() -> None:
    """Red when a mixed step's time goes to one layout alone."""
    report = RunReport()
    report.event(_step(0, rows=3))
    report.event(StepDone(0.2, 1, 0.1, 0.001, 4, 0, {"tp": 1, "dp": 3}, [2, 2], 0, 4))
    shares = report.layouts()
    assert shares == {"tp": pytest.approx(0.625), "dp": pytest.approx(0.375)}
