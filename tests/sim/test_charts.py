"""Charts and the page: what they show is what the results say, and the page stands alone."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splash.sim.charts import Figure, bands, comparison, latencies, thinned, timeline
from splash.sim.report import MAX_SWITCHES, page
from splash.sim.result import RunResult, Sample
from splash.tui.palette import LAYOUT_COLORS
from tests.sim.results_made import REASON, run

FIGURES = (comparison, timeline, latencies)


def _runs() -> list[RunResult]:
    return [run("tp", switches=0), run("auto"), run("restart", slower=2)]


def test_bands_follow_the_target_without_gaps() -> None:
    """Red when a change of the target is lost, or time between two samples belongs to no layout."""
    result = replace(run(), samples=run().samples[:85])  # the last one at 42 s, before the last token
    found = bands(result)
    assert [band.layout for band in found] == ["tp", "dop", "tp", "dop", "tp"]
    assert [band.start_s for band in found] == [0, 10, 20, 30, 40]
    assert all(before.end_s == after.start_s for before, after in pairwise(found))
    assert found[-1].end_s == max(request.last_token_s for request in result.requests)
    assert bands(replace(run(), samples=())) == []


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300), st.integers(4, 40))
def test_thinning_keeps_the_extremes(values: list[float], most: int) -> None:
    """Red when a burst disappears from a line, points leave their place, or the line is not thinned."""
    times = [float(place) for place in range(len(values))]
    kept_times, kept = thinned(times, values, most)
    assert len(kept) <= most + 1
    assert {min(values), max(values), values[-1]} <= set(kept)
    assert kept_times == sorted(kept_times)
    assert all(values[int(time)] == value for time, value in zip(kept_times, kept, strict=True))


@pytest.mark.parametrize("figure", FIGURES)
@pytest.mark.parametrize("count", [1, 3])
def test_figures_are_what_plotly_expects(figure, count: int) -> None:  # type: ignore[no-untyped-def]
    """Red when a property is misspelt or has a value that plotly would drop without a word."""
    graph_objects = pytest.importorskip("plotly.graph_objects", reason="plotly knows its own schema")
    graph_objects.Figure(figure(_runs()[:count], LAYOUT_COLORS))


def test_axes_that_traces_name_exist() -> None:
    """Red when a trace would be drawn on an axis that the figure does not have."""
    for figure in FIGURES:
        drawn = figure(_runs(), LAYOUT_COLORS)
        for trace in drawn["data"]:
            for kind in ("x", "y"):
                name = trace.get(f"{kind}axis", kind)
                assert f"{kind}axis{name[1:]}" in drawn["layout"], (figure.__name__, name)


def test_bars_are_the_results() -> None:
    """Red when a bar shows another figure, another run, or a latency is not its p99."""
    runs = _runs()
    throughput, ttft, tpot, *shares = comparison(runs, LAYOUT_COLORS)["data"]
    assert throughput["x"] == ["tp", "auto", "restart"]
    assert throughput["y"] == [result.output_tokens_per_s for result in runs]
    assert ttft["y"] == [result.ttft_s.p99 for result in runs]
    assert tpot["y"] == [result.tpot_s.p99 for result in runs]
    assert [(trace["name"], trace["y"][1]) for trace in shares] == [("tp", 0.4), ("dop", 0.6)]


def test_curves_end_at_the_slowest() -> None:
    """Red when a CDF leaves out its tail, or takes one latency for another."""
    slow = run("restart", slower=2)
    ttft, tpot, itl = latencies([slow], LAYOUT_COLORS)["data"]
    assert ttft["x"][-1] == max(request.ttft_s for request in slow.requests)
    assert tpot["x"][-1] == max(request.tpot_s or 0 for request in slow.requests)
    assert (itl["x"][0], itl["x"][-1]) == (0.2, 0.28)
    for trace in (ttft, tpot, itl):
        assert trace["x"] == sorted(trace["x"])
        assert (trace["y"][0], trace["y"][-1]) == (0, 1)


def test_lines_show_every_series() -> None:
    """Red when running, waiting, KV or throughput is drawn from another field."""
    result = replace(run(), samples=(Sample(0, "tp", 1, 2, 0.3, 4.0), Sample(5, "tp", 5, 6, 0.7, 8.0)))
    lines = [trace for trace in timeline([result], LAYOUT_COLORS)["data"] if trace["type"] == "scatter"]
    assert [trace["y"] for trace in lines] == [[1, 5], [2, 6], [0.3, 0.7], [4.0, 8.0]]


# ---- the page


class _Page(HTMLParser):
    """What a browser would load, and the text it would show."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.scripts: list[str] = []
        self.text: list[str] = []
        self.tags: list[str] = []
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href", "srcset", "data")]
        self.tags.append(tag)
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        (self.scripts if self._inside == "script" else self.text).append(data)


def _page(runs: list[RunResult], **more: str) -> str:
    options = {"title": "splash sim: burst", "note": "a model on a device", "script": "/* plotly */", **more}
    return page(runs, colors=LAYOUT_COLORS, **options)


def _drawn(found: _Page) -> dict[str, Figure]:
    match = re.search(r"const figures = (.*);\n", found.scripts[-1])
    assert match is not None
    figures: dict[str, Figure] = json.loads(match[1])
    return figures


def test_the_page_stands_alone() -> None:
    """Red when the page loads anything, or plotly is in it more than once, or a chart has no place."""
    text = _page(_runs())
    found = _Page(text)
    assert found.loads == []
    assert "default-src 'none'" in text
    assert text.count("/* plotly */") == 1
    assert set(_drawn(found)) == {"comparison", "timeline", "latencies"}
    for name in _drawn(found):
        assert f'<div id="{name}">' in text


def test_the_page_says_what_the_tables_say() -> None:
    """Red when a figure, a switch or its reason is missing, or text of a run becomes markup."""
    evil = "</script><script>alert(1)</script>"
    found = _Page(_page([run(f"{evil}tp"), run()], title=f"<i>{evil}", note="a & b"))
    shown = " ".join(found.text)
    assert found.tags.count("script") == 2, "plotly, and the drawing"
    assert "i" not in found.tags
    assert f"<i>{evil}" in shown
    assert REASON in shown
    assert "tp → dop" in shown
    assert "superseded" in shown
    assert f"{run().makespan_s:,.1f}" in shown
    assert f"{(run().tpot_s.p99 or 0) * 1e3:.4g}" in shown


def test_a_page_without_switches_or_with_many() -> None:
    """Red when the page of a fixed layout is silent, or that of a flapping policy is endless."""
    assert "No run changed its layout." in _page([run("tp", switches=0)])
    many = _page([run(switches=MAX_SWITCHES + 5)])
    assert many.count("tp → dop") + many.count("dop → tp") == MAX_SWITCHES
    assert f"auto: {MAX_SWITCHES + 5}" in many
