"""Events fold into what the view shows: progress, flips left, bounded memory, little time."""

import time
from dataclasses import replace

import pytest

from splash.core import events as e
from splash.tui.history import Band
from splash.tui.log import EventLog
from splash.tui.rates import Recent, SlidingRate
from splash.tui.state import ViewState
from splash.tui.units import clean, show_bytes, show_clock, show_seconds, show_share
from tests.tui.stream import Run


def folded(events, until=lambda event: False) -> ViewState:
    state = ViewState()
    for event in events:
        state.fold(event)
        if until(event):
            break
    return state


def test_every_event_type_is_folded() -> None:
    """Red when core.events gains an event that the view does not know."""
    assert set(ViewState()._folds) == set(e.EVENT_TYPES.values())


def test_a_run_ends_with_its_totals() -> None:
    """Red when requests, tokens, flips or switches are counted twice or not at all."""
    events = list(Run().events())
    view = folded(events).snapshot()
    assert view.totals.arrived == 24
    assert view.totals.finished == sum(isinstance(x, e.RequestFinished) for x in events)
    assert view.totals.output_tokens == sum(x.tokens for x in events if isinstance(x, e.StepDone))
    assert view.totals.flips == sum(isinstance(x, e.RequestFlipped) for x in events)
    assert view.totals.switches == 3
    assert view.num_running + view.waiting == view.totals.arrived - view.totals.finished
    assert view.finished is not None
    assert view.finished.outcome == "done"
    assert view.target == "tp"
    assert view.kv_bytes == sum(sum(map(sum, x.kv_bytes)) for x in events if isinstance(x, e.CopyProgress))


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_running_by_layout_follows_each_event(ranks: int) -> None:
    """Red when the counts between two samples drift from the requests themselves."""
    state, where = ViewState(), {}
    for event in Run(ranks=ranks).events():
        state.fold(event)
        match event:
            case e.RequestAdmitted():
                where[event.request] = event.layout
            case e.RequestFlipped():
                where[event.request] = event.new
            case e.RequestFinished():
                del where[event.request]
        counts = {name: list(where.values()).count(name) for name in set(where.values())}
        assert state.snapshot().running == counts


def test_a_switch_counts_down_and_reaches_its_end() -> None:
    """Red when progress goes back, stops short of 100 %, or flips left rises within a switch."""
    state = ViewState()
    shares, left, open_targets = [], [], []
    for event in Run(switches=((40, "dp", "many short requests"),)).events():
        state.fold(event)
        view = state.snapshot()
        if view.switch is not None:
            open_targets.append(view.switch.new)
            left.append(view.flips_left)
            shares += [move.share for move in view.moves if (move.old, move.new) == ("tp", "dop")]
        if isinstance(event, e.SwitchDone):
            break
    assert set(open_targets) == {"dp"}
    assert left[0] == 24
    assert left == sorted(left, reverse=True)
    assert left[-1] == 0, "the toggle dop -> dp flips the last"
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)
    assert 0.3 < shares[len(shares) // 2] < 1.0
    view = state.snapshot()
    assert view.switch is None
    assert view.last_switch is not None
    assert (view.last_switch.old, view.last_switch.new, view.last_switch.outcome) == ("tp", "dp", "done")
    assert view.weights is not None
    assert view.weights.is_done
    assert view.weights.share == 1.0
    assert view.weights.evacuated_pages == 18
    assert all(rank.slots.count("replica") == 1 for rank in view.ranks)
    assert {move.flips_left for move in view.moves} == {0}


def _stage(request: int, old: str, new: str, amount: int, t: float = 1.0) -> e.StageStarted:
    return e.StageStarted(t, 10, request, old, new, 0, 1, amount, [[0, amount], [0, 0]])


def _copied(amount: int, t: float) -> e.CopyProgress:
    return e.CopyProgress(t, 11, [[0, amount], [0, 0]], [[0, 0], [0, 0]], 0, 1, 0)


def test_bytes_go_to_the_oldest_move_of_their_link() -> None:
    """Red when two open moves share what arrived, or one takes more than it expects."""
    state = folded([_stage(1, "tp", "dop", 100), _stage(2, "dcp", "dop", 50), _copied(120, 1.1)])
    assert [(move.old, move.arrived) for move in state.snapshot().moves] == [("tp", 100), ("dcp", 20)]
    state.fold(_copied(1000, 1.2))
    assert [move.share for move in state.snapshot().moves] == [1.0, 1.0]


@pytest.mark.parametrize("end", ["cancelled", "finished", "preempted"])
def test_a_request_that_leaves_in_mid_copy_is_expected_no_more(end: str) -> None:
    """Red when a cancelled staging keeps a move below 100 % for ever."""
    state = folded([_stage(1, "tp", "dop", 100), _stage(2, "tp", "dop", 300), _copied(100, 1.1)])
    state.fold(
        {
            "cancelled": e.StageCancelled(1.2, 12, 2, "dop", "shortage of pages"),
            "finished": e.RequestFinished(1.2, 2, "abort", 5, 0.1, None),
            "preempted": e.RequestPreempted(1.2, 2, 40),
        }[end]
    )
    (move,) = state.snapshot().moves
    assert (move.requests, move.num_bytes, move.links) == (1, 100, {(0, 1): 100})
    state.fold(e.RequestFlipped(1.3, 13, 1, "tp", "dop", 1, 3, 100))
    assert state.snapshot().moves[0].share == 1.0
    state.fold(e.StageCancelled(1.4, 14, 77, "dop", "never staged"))
    assert state.snapshot().flips_left == 0


def test_weights_that_are_given_up_are_no_success() -> None:
    """Red when a cancelled fetch is shown as complete, or its move never ends."""
    state = folded(
        [
            e.ResidencyChanged(0.0, 0, 0, ["own", "kv"]),
            e.ResidencyChanged(1.0, 5, 0, ["own", "filling"]),
            e.CopyProgress(1.1, 6, [[0, 0], [0, 0]], [[0, 0], [30, 0]], 0, 0, 70),
            e.ResidencyChanged(1.2, 7, 0, ["own", "kv"]),
        ]
    )
    weights = state.snapshot().weights
    assert weights is not None
    assert (weights.is_done, weights.left) == (True, 70)
    assert weights.share == pytest.approx(0.3)


def test_finished_moves_linger_and_then_go() -> None:
    """Red when a short move is never seen, or a finished one stays for ever."""
    state = folded([_stage(1, "tp", "dop", 100), e.RequestFlipped(1.1, 11, 1, "tp", "dop", 1, 1, 100)])
    step = e.StepDone(1.2, 11, 0.01, 0.001, 1, 0, {"dop": 1}, [1, 0], 1, 1)
    state.fold(step)
    assert len(state.snapshot().moves) == 1
    state.fold(replace(step, t=9.0))
    assert state.snapshot().moves == ()


def test_a_refused_target_stays_on_view_until_the_target_changes() -> None:
    """Red when the refusal is lost, or outlives the next change."""
    state = folded([e.TargetRefused(1.0, 3, "dp", "needs 412 pages, 300 are free")])
    assert state.snapshot().refused is not None
    state.fold(e.TargetChanged(2.0, 9, "tp", "dcp", "", {}))
    assert state.snapshot().refused is None
    state.fold(e.SwitchDone(2.5, 20, "tp", "dp", "", "superseded", 1, 0, 0, 0, 0.1, 0.001))
    assert state.snapshot().switch is not None, "the end of another switch does not close this one"


def test_unknown_ranks_layouts_and_requests_are_safe() -> None:
    """Red when a broken or partial stream stops the view, or a wild rank number allocates."""
    state = folded(
        [
            e.ResidencyChanged(0.1, 0, 3, ["kv", "own", "odd"]),
            e.ResidencyChanged(0.1, 0, 10**9, ["own"]),
            e.ResidencyChanged(0.1, 0, -1, ["own"]),
            e.RequestFlipped(0.2, 1, 5, "tp", "tknp", 0, 0, 0),
            e.RequestFinished(0.3, 99, "stop", 1, None, None),
            e.SwitchDone(0.4, 2, "tp", "dp", "", "done", 0, 0, 0, 0, 0.0, 0.0),
            e.PoolSampled(0.5, [{"odd": 3}], {"tknp": 1}, 0, 0),
            e.StepDone(0.1, 1, 0.0, 0.0, 1, 0, {"tknp": 1}, [1, 1, 1, 1, 1, 1], 0, 1),
        ]
    )
    view = state.snapshot()
    assert len(view.ranks) == 6
    assert view.running == {"tknp": 1}
    assert view.t == 0.5, "time never goes back"


def test_a_snapshot_does_not_change_any_more() -> None:
    """Red when a panel could see half of a later event: the drawing thread holds no lock."""
    events = list(Run().events())
    state = folded(events[: len(events) // 2])
    view = state.snapshot()
    before = repr(view)
    for event in events[len(events) // 2 :]:
        state.fold(event)
    assert repr(view) == before


def test_ten_thousand_events_fold_in_well_under_a_second() -> None:
    """Red when an event costs more than a constant: a scan of requests, of buckets, of the log."""
    switches = tuple((60 + 100 * i, ("dp", "tp", "dcp", "cp", "dop")[i % 5], "") for i in range(90))
    events = list(Run(ranks=8, requests=300, last_step=9000, num_pages=90_000, switches=switches).events())
    assert len(events) > 10_000
    begin = time.process_time()
    folded(events[:10_000])
    assert time.process_time() - begin < 0.5


def test_the_band_is_bounded_and_keeps_what_it_was_given() -> None:
    """Red when buckets grow with time, or merging them loses requests, tokens or seconds."""
    band = Band(capacity=64, bucket_s=0.01)
    for step in range(1, 20_001):
        band.advance(step * 0.37, {"tp": 3, "dp": 1}, "tp" if step < 15_000 else "dp", tokens=4)
        assert len(band._buckets) <= 64
    history = band.snapshot()
    whole = 20_000 * 0.37
    assert sum(bucket.seconds for bucket in history.buckets) == pytest.approx(whole)
    assert sum(bucket.requests["tp"] for bucket in history.buckets) == pytest.approx(3 * whole)
    assert sum(bucket.tokens for bucket in history.buckets) == pytest.approx(80_000)
    for width in (1, 7, 40, 64, 500):
        columns = history.columns(width)
        assert len(columns) <= width
        assert all(column.requests == pytest.approx({"tp": 3, "dp": 1}) for column in columns)
    columns = history.columns(40)
    assert [column.target for column in columns] == sorted((c.target for c in columns), reverse=True)
    assert columns[0].tokens_per_s == pytest.approx(4 / 0.37)


def test_the_band_takes_a_leap_in_time_and_events_of_one_moment() -> None:
    """Red when a long pause fills memory, or two events at one time divide by zero."""
    band = Band(capacity=8, bucket_s=0.1)
    assert band.snapshot().columns(10) == []
    band.advance(0.0, {"tp": 1}, "tp", tokens=1)
    band.advance(1e7, {"tp": 1}, "tp")
    band.advance(1e7, {"dp": 2}, "dp", tokens=2)
    assert 0 < len(band.snapshot().buckets) <= 8


def test_like_events_of_one_window_make_one_line() -> None:
    """Red when a burst floods the log, or lines are cut short or reopened after they were written."""
    log = EventLog(window_s=1.0)
    for number in range(100):
        log.note(e.RequestArrived(0.01 * number, number, 10, 5), ("arrive",), num_tokens=10)
    assert [(entry.count, entry.num_tokens) for entry in log.latest()] == [(100, 1000)]
    assert list(log.closed_since(0)) == []
    log.note(e.TargetRefused(0.995, 1, "dp", "no room"))
    assert [entry.seq for entry in log.closed_since(0)] == [0, 1]
    log.note(e.RequestArrived(1.0, 100, 10, 5), ("arrive",), num_tokens=10)
    log.note(e.RequestArrived(2.5, 101, 10, 5), ("arrive",), num_tokens=10)
    assert [entry.count for entry in log.latest()] == [100, 1, 1, 1]
    assert [entry.seq for entry in log.closed_since(2)] == [2]


def test_the_log_says_what_moved_from_where_to_where_and_why() -> None:
    """Red when a line loses the layouts, the bytes, the ranks or the reason."""
    view = folded(Run(switches=((40, "dp", "many short requests"),)).events()).snapshot()
    text = "\n".join(entry.text for entry in view.log)
    for fact in (
        "serve splash-demo (deepseek_v3, 3.1 M) on cpu, 2 ranks",
        "24 requests arrive: 4,344 prompt tokens",
        "target tp → dp: many short requests",
        "24 requests stage tp → dop: 96.0 KiB, rank 0 → 1 48.0 KiB, 1 → 0 48.0 KiB",
        "24 requests flip tp → dop: 96.0 KiB staged over 8–14 steps",
        "24 requests toggle dop → dp: nothing moved",
        "2 slots on ranks 0, 1 draining, their KV pages move out",
        "2 slots on ranks 0, 1 now replicas",
        "switch tp → dp done: 24 requests, 96.0 KiB KV, 11.4 MiB weights, 14 steps, 255 ms, boundary ≤ 1.1 ms",
        "run done: all requests have finished",
    ):
        assert fact in text
    assert len(view.log) <= 50


def test_rate_is_that_of_the_window() -> None:
    """Red when the first mark counts, the window never slides, or a pause keeps the old speed."""
    rate = SlidingRate(span_s=2.0, num_marks=64)
    assert rate.at(1.0) == 0.0
    for step in range(1000):
        rate.add(0.01 * step, 4)
    assert rate.at(9.99) == pytest.approx(400)
    assert len(rate._marks) <= 64
    for step in range(20):
        rate.add(10 + 0.5 * step, 1)
    assert rate.at(19.5) == pytest.approx(2.0)
    assert rate.at(60.0) == 0.0


def test_percentiles_of_the_latest() -> None:
    """Red when old values stay, or no value is taken for zero."""
    recent = Recent(num_values=100)
    assert recent.percentiles().p50 is None
    recent.add(None)
    for value in range(1000):
        recent.add(float(value))
    assert recent.percentiles().p50 == pytest.approx(950, abs=1)
    assert recent.percentiles().p95 == pytest.approx(994, abs=1)


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (show_bytes(0), "0 B"),
        (show_bytes(1023), "1.0 KiB"),
        (show_bytes(3.1 * 2**20), "3.1 MiB"),
        (show_bytes(128 * 2**30), "128 GiB"),
        (show_seconds(None), "N/A"),
        (show_seconds(85e-6), "85 µs"),
        (show_seconds(-0.0123), "-12.3 ms"),
        (show_seconds(0.0123), "12.3 ms"),
        (show_seconds(0.25), "250 ms"),
        (show_seconds(1.25), "1.25 s"),
        (show_seconds(245), "4 min 05 s"),
        (show_clock(12.41), "12.41 s"),
        (show_clock(119.96), "2:00.0"),
        (show_clock(3723), "1:02:03"),
        (show_share(0.999), " 99 %"),
        (show_share(1.0), "100 %"),
        (clean("a\x1b[31m b\n c"), "a[31m b c"),
    ],
)
def test_figures(shown: str, text: str) -> None:
    """Red when a unit rolls over wrongly, 100 % comes early, or an escape code gets through."""
    assert shown == text


def test_a_staging_to_dp_flips_to_dop_and_toggles_when_replicas_have_come() -> None:
    """Red when the two halves of a move to a full projection are counted as two moves of the KV."""
    state = folded(
        [
            e.RequestAdmitted(0.1, 1, "tp", 0),
            e.TargetChanged(0.5, 4, "tp", "dp", "few requests", {}),
            _stage(1, "tp", "dp", 100),
            _copied(100, 1.1),
            e.RequestFlipped(1.2, 12, 1, "tp", "dop", 1, 2, 100),
        ]
    )
    assert [(move.old, move.new, move.share) for move in state.snapshot().moves] == [("tp", "dp", 1.0)]
    assert state.snapshot().flips_left == 1, "it has not reached the target yet"
    state.fold(e.RequestFlipped(1.3, 13, 1, "dop", "dp", 1, 0, 0))
    view = state.snapshot()
    assert [(move.old, move.new, move.num_bytes) for move in view.moves] == [
        ("tp", "dp", 100),
        ("dop", "dp", 0),
    ]
    assert view.flips_left == 0
    assert view.running == {"dp": 1}


def test_nobody_runs_no_rows() -> None:
    """Red when the rows of the last step stand beside `running 0` for ever."""
    events = list(Run().events())
    at = max(index for index, event in enumerate(events) if isinstance(event, e.PoolSampled))
    state = folded(events[:at])
    assert any(rank.rows for rank in state.snapshot().ranks)
    state.fold(replace(events[at], running={}))
    view = state.snapshot()
    assert [rank.rows for rank in view.ranks] == [0, 0]
    assert (view.decode_rows, view.rows_by_layout) == (0, {})


def test_a_toggle_ends_no_staging() -> None:
    """Red when a request that is staged from dp to dcp counts as flipped once its projection is toggled, though its
    KV has not been copied."""
    state = folded(
        [
            e.RequestAdmitted(0.1, 1, "dp", 0),
            e.TargetChanged(0.5, 4, "dp", "dcp", "few requests", {}),
            _stage(1, "dp", "dcp", 100),
            e.RequestFlipped(1.1, 11, 1, "dp", "dop", 0, 0, 0),
        ]
    )
    assert [(move.old, move.new, move.share, move.flips_left) for move in state.snapshot().moves] == [
        ("dp", "dcp", 0.0, 1),
        ("dp", "dop", 1.0, 0),
    ]
    state.fold(e.RequestFlipped(1.3, 13, 1, "dop", "dcp", 1, 2, 100))
    view = state.snapshot()
    assert [(move.old, move.new, move.flips_left) for move in view.moves] == [
        ("dp", "dcp", 0),
        ("dp", "dop", 0),
    ]
    assert view.running == {"dcp": 1}
