"""Charts of simulated runs as plotly figures: plain data in plotly's JSON schema, drawn where the page is viewed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from splash.sim.result import Distribution, RunResult, Sample

Figure = dict[str, Any]
"""`data` and `layout`."""
Colors = Mapping[str, str]
"""Layout name to `#rrggbb`."""

POLICY_COLORS = {"auto": "#ffffff", "oracle": "#7bd88f", "restart": "#e8705a"}
"""Runs that are no fixed layout."""
OTHER_COLOR = "#8b93a1"

INK, GRID, BACKGROUND = "#c9d1dc", "#2b303b", "#14161c"

MAX_POINTS = 1500
"""Of one line; what lies between is shown by its extremes."""

PERCENTS = (*range(99), 99, 99.25, 99.5, 99.75, 99.9, 99.95, 99.99, 100)
"""Where a CDF is drawn; denser in the tail."""


@dataclass(frozen=True, slots=True)
class Band:
    """A time in which the target did not change; seconds."""

    layout: str
    start_s: float
    end_s: float


def bands(run: RunResult) -> list[Band]:
    """The target over time, without gaps, from the first sample to the last token."""
    found: list[Band] = []
    for sample, end_s in _held(run):
        if found and found[-1].layout == sample.target:
            found[-1] = Band(sample.target, found[-1].start_s, end_s)
        else:
            found.append(Band(sample.target, sample.time_s, end_s))
    return [band for band in found if band.end_s > band.start_s]


def _held(run: RunResult) -> Iterator[tuple[Sample, float]]:
    """Each sample with the time until which it holds."""
    if run.samples:
        last_s = max(run.samples[-1].time_s, max(request.last_token_s for request in run.requests))
        ends = (*(after.time_s for _, after in pairwise(run.samples)), last_s)
        yield from zip(run.samples, ends, strict=True)


def thinned(
    times: Sequence[float], values: Sequence[float], most: int = MAX_POINTS
) -> tuple[list[float], list[float]]:
    """At most `most` + 1 points: the least and the greatest of every stretch, and the last."""
    if len(times) <= most:
        return list(times), list(values)
    size = math.ceil(len(times) / (most // 2))
    kept = {len(times) - 1}
    for start in range(0, len(times), size):
        stretch = range(start, min(start + size, len(times)))
        kept |= {min(stretch, key=values.__getitem__), max(stretch, key=values.__getitem__)}
    order = sorted(kept)
    return [times[index] for index in order], [values[index] for index in order]


# ---- over time

_SERIES: tuple[tuple[str, Callable[[Sample], float]], ...] = (
    ("running", lambda sample: sample.running),
    ("waiting", lambda sample: sample.waiting),
    ("KV used", lambda sample: sample.kv_used_share),
    ("tokens/s", lambda sample: sample.tokens_per_s),
)


def timeline(runs: Sequence[RunResult], colors: Colors) -> Figure:
    """Below each other on one time axis: the layout of each run, requests running and waiting, KV used, tokens/s."""
    data = [trace for run in runs for trace in _band_traces(run, colors)]
    _name_once(data)
    for row, (_, value) in enumerate(_SERIES, start=2):
        for run in runs:
            times, values = thinned([s.time_s for s in run.samples], [value(s) for s in run.samples])
            data.append(
                _line(run, colors, times, values)
                | {
                    "line": {"shape": "hv", "width": _width(run), "color": run_color(run.layout, colors)},
                    "yaxis": _axis("y", row),
                    "showlegend": row == 2,
                    "legend": "legend2",
                }
            )
    layout = _layout(height=190 + 28 * len(runs) + 150 * len(_SERIES), barmode="overlay")
    rows = [("", 28 * len(runs) + 30), *((name, 150) for name, _ in _SERIES)]
    domains = _domains([height for _, height in rows])
    layout |= {
        _axis("yaxis", row): _y(name, domain)
        for row, ((name, _), domain) in enumerate(zip(rows, domains, strict=True), start=1)
    }
    layout["yaxis"] |= {"autorange": "reversed", "type": "category"}
    layout["yaxis4"] |= {"tickformat": ".0%"}
    layout["xaxis"] = {**_AXIS, "title": {"text": "seconds"}, "anchor": "y5"}
    layout["legend"] = {**_LEGEND, "y": 1.0, "title": {"text": "layout"}}
    layout["legend2"] = {**_LEGEND, "y": domains[1][1], "title": {"text": "run"}}
    return {"data": data, "layout": layout}


def _band_traces(run: RunResult, colors: Colors) -> list[Figure]:
    """A row of coloured stretches, one trace a layout."""
    found = bands(run)
    traces = []
    for name in dict.fromkeys(band.layout for band in found):
        own = [band for band in found if band.layout == name]
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": name,
                "legendgroup": name,
                "y": [run.layout] * len(own),
                "base": [band.start_s for band in own],
                "x": [band.end_s - band.start_s for band in own],
                "marker": {"color": colors.get(name, OTHER_COLOR), "line": {"width": 0}},
                "hovertemplate": f"{name} from %{{base:.1f}} s, for %{{x:.1f}} s<extra></extra>",
                "yaxis": "y",
                "legend": "legend",
            }
        )
    return traces


# ---- latencies


def latencies(runs: Sequence[RunResult], colors: Colors) -> Figure:
    """CDFs beside each other: TTFT and TPOT over requests, ITL over tokens."""
    panels = ("TTFT", "TPOT", "ITL")
    data = []
    for panel, name in enumerate(panels, start=1):
        for run in runs:
            seconds, shares = _cdf(_latency(run, name))
            data.append(
                _line(run, colors, seconds, shares)
                | {
                    "line": {"width": _width(run), "color": run_color(run.layout, colors)},
                    "xaxis": _axis("x", panel),
                    "yaxis": _axis("y", panel),
                    "showlegend": panel == 1,
                }
            )
    layout = _layout(height=380)
    layout["legend"] = {**_LEGEND, "y": 1.0}
    for panel, (name, domain) in enumerate(zip(panels, _columns(len(panels)), strict=True), start=1):
        layout[_axis("xaxis", panel)] = {
            **_AXIS,
            "type": "log",
            "title": {"text": f"{name}, seconds"},
            "domain": domain,
            "anchor": _axis("y", panel),
        }
        layout[_axis("yaxis", panel)] = {
            **_AXIS,
            "range": [0, 1.005],
            "tickformat": ".0%",
            "anchor": _axis("x", panel),
        }
    return {"data": data, "layout": layout}


def _latency(run: RunResult, name: str) -> Distribution:
    if name == "ITL":
        return run.itl
    if name == "TTFT":
        return Distribution.of([request.ttft_s for request in run.requests])
    return Distribution.of([request.tpot_s for request in run.requests if request.tpot_s is not None])


def _cdf(spread: Distribution) -> tuple[list[float], list[float]]:
    """Seconds, and the share of values that are at most those."""
    if not spread.values:
        return [], []
    return [spread.percentile(percent) for percent in PERCENTS], [percent / 100 for percent in PERCENTS]


# ---- side by side


def comparison(runs: Sequence[RunResult], colors: Colors) -> Figure:
    """Bars beside each other: throughput, p99 of TTFT and TPOT, and the share of time per layout."""
    names = [run.layout for run in runs]
    figures = (
        ("output tokens/s", [run.output_tokens_per_s for run in runs]),
        ("TTFT p99, s", [run.ttft_s.p99 for run in runs]),
        ("TPOT p99, s", [run.tpot_s.p99 for run in runs]),
    )
    data: list[Figure] = []
    for panel, (title, values) in enumerate(figures, start=1):
        data.append(
            {
                "type": "bar",
                "name": title,
                "x": names,
                "y": values,
                "marker": {"color": [run_color(name, colors) for name in names]},
                "xaxis": _axis("x", panel),
                "yaxis": _axis("y", panel),
                "showlegend": False,
                "hovertemplate": "%{x}: %{y:.4g}<extra></extra>",
            }
        )
    for name in dict.fromkeys(name for run in runs for name in run.time_share):
        data.append(
            {
                "type": "bar",
                "name": name,
                "x": names,
                "y": [run.time_share.get(name, 0.0) for run in runs],
                "marker": {"color": colors.get(name, OTHER_COLOR)},
                "xaxis": "x4",
                "yaxis": "y4",
                "hovertemplate": f"{name}: %{{y:.1%}} of %{{x}}<extra></extra>",
            }
        )
    layout = _layout(height=340, barmode="stack")
    layout["legend"] = {**_LEGEND, "y": 1.0, "title": {"text": "layout"}}
    titles = (*(title for title, _ in figures), "share of time")
    for panel, (title, domain) in enumerate(zip(titles, _columns(len(titles)), strict=True), start=1):
        layout[_axis("xaxis", panel)] = {
            **_AXIS,
            "domain": domain,
            "anchor": _axis("y", panel),
            "title": {"text": title},
            "type": "category",
        }
        layout[_axis("yaxis", panel)] = {**_AXIS, "anchor": _axis("x", panel), "rangemode": "tozero"}
    layout["yaxis4"] |= {"tickformat": ".0%", "range": [0, 1]}
    return {"data": data, "layout": layout}


# ---- what figures share

_AXIS: Figure = {"gridcolor": GRID, "zerolinecolor": GRID, "linecolor": GRID, "automargin": True}
_LEGEND: Figure = {"x": 1.01, "xanchor": "left", "yanchor": "top", "bgcolor": "rgba(0,0,0,0)"}


def run_color(name: str, colors: Colors) -> str:
    """Of a run named after a layout or a policy."""
    return colors.get(name) or POLICY_COLORS.get(name, OTHER_COLOR)


def _width(run: RunResult) -> float:
    """Policies stand out against fixed layouts."""
    return 2.4 if run.layout in POLICY_COLORS else 1.4


def _line(run: RunResult, colors: Colors, x: list[float], y: list[float]) -> Figure:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": run.layout,
        "legendgroup": f"run {run.layout}",
        "x": x,
        "y": y,
        "hovertemplate": f"{run.layout}: %{{y:.4g}} at %{{x:.4g}}<extra></extra>",
    }


def _layout(height: int, **more: Any) -> Figure:
    return {
        "height": height,
        "margin": {"l": 60, "r": 20, "t": 36, "b": 48},
        "paper_bgcolor": BACKGROUND,
        "plot_bgcolor": BACKGROUND,
        "font": {"color": INK, "size": 12},
        "hovermode": "closest",
        "bargap": 0.25,
        **more,
    }


def _axis(kind: str, number: int) -> str:
    """`yaxis`, `yaxis2`, … as a key of a figure's layout; `y`, `y2`, … where a trace or an axis names another."""
    return kind if number == 1 else f"{kind}{number}"


def _y(title: str, domain: list[float]) -> Figure:
    return {**_AXIS, "title": {"text": title}, "domain": domain, "anchor": "x", "rangemode": "tozero"}


def _domains(heights: Sequence[float], gap: float = 0.025) -> list[list[float]]:
    """Where rows of these heights lie between 1 (above) and 0."""
    room = 1 - gap * (len(heights) - 1)
    found, top = [], 1.0
    for height in heights:
        bottom = top - room * height / sum(heights)
        found.append([max(0.0, bottom), top])
        top = bottom - gap
    return found


def _columns(count: int, gap: float = 0.06) -> list[list[float]]:
    """Equal widths from 0 to 1."""
    width = (1 - gap * (count - 1)) / count
    return [[place * (width + gap), min(1.0, place * (width + gap) + width)] for place in range(count)]


def _name_once(traces: Sequence[Figure]) -> None:
    """A layout is in the legend once, however many runs use it."""
    seen: set[str] = set()
    for trace in traces:
        trace["showlegend"] = trace["name"] not in seen
        seen.add(trace["name"])
