"""One page about runs of a workload: charts, tables and the reasons of all switches, without any file beside it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape

from splash.sim.charts import BACKGROUND, GRID, INK, Colors, Figure, comparison, latencies, timeline
from splash.sim.modes import CHANGES
from splash.sim.result import Percentiles, RunResult

MAX_SWITCHES = 500
"""Of one run that the page lists; the JSON has all."""


def page(runs: Sequence[RunResult], *, title: str, note: str, colors: Colors, script: str) -> str:
    """HTML that needs no network when it is viewed, and allows itself none.

    `script` is plotly's JavaScript, `note` one line below the title: model, hardware, workload. All text is escaped.
    """
    figures = {
        "comparison": comparison(runs, colors),
        "timeline": timeline(runs, colors),
        "latencies": latencies(runs, colors),
    }
    body = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(note)}</p>",
        "<noscript><p>The charts need JavaScript; the tables below do not.</p></noscript>",
        *_section("Comparison", '<div id="comparison"></div>'),
        *_section("Over time", '<div id="timeline"></div>'),
        *_section("Latencies", '<div id="latencies"></div>'),
        *_section("Figures", _runs_table(runs), _latency_table(runs), f"<p>{_DEFINITIONS}</p>"),
        *_section("Switches", *_switches(runs)),
    ]
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n<script>{script}</script>\n</head>\n<body>",
            *body,
            f"<script>{_drawing(figures)}</script>\n</body>\n</html>\n",
        ]
    )


_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
"""The browser itself refuses to load anything."""

_STYLE = f"""
body {{ background: {BACKGROUND}; color: {INK}; font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 90em;
  padding: 0 1.5em; }}
h1 {{ font-size: 1.5em; color: #fff; margin-bottom: 0; }}
h2 {{ font-size: 1.1em; color: #fff; border-bottom: 1px solid {GRID}; margin-top: 2em; }}
table {{ border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; display: block;
  overflow-x: auto; margin-bottom: 1.5em; }}
th, td {{ padding: .2em .6em; text-align: right; border-bottom: 1px solid {GRID}; white-space: nowrap; }}
th:first-child, td.text {{ text-align: left; }}
td.text {{ white-space: normal; min-width: 6em; }}
p {{ max-width: 60em; color: #9aa3b2; }}
"""

_DEFINITIONS = (
    "TTFT: from arrival to the first token. TPOT: from the first to the last token, over their number less one."
    " ITL: gaps between tokens. E2E: from arrival to the last token. Goodput: requests per second that met all targets."
    " Milliseconds for TPOT and ITL, seconds elsewhere."
)


def _section(heading: str, *parts: str) -> tuple[str, ...]:
    return (f"<section><h2>{heading}</h2>", *parts, "</section>")


def _drawing(figures: dict[str, Figure]) -> str:
    """JSON in which no character can end the script element."""
    data = json.dumps(figures, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return (
        f"const figures = {data};\n"
        "const options = {responsive: true, displaylogo: false, plotlyServerURL: ''};\n"
        "for (const [id, figure] of Object.entries(figures)) Plotly.newPlot(id, figure.data, figure.layout, options);"
    )


# ---- tables

_PERCENTS = ("p50", "p90", "p95", "p99")


def _runs_table(runs: Sequence[RunResult]) -> str:
    heads = (
        "run",
        "output tokens/s",
        "makespan, s",
        "goodput",
        "preemptions",
        "switches",
        "steps",
        "decisions",
    )
    rows = [
        [
            run.layout,
            f"{run.output_tokens_per_s:,.1f}",
            f"{run.makespan_s:,.1f}",
            "–" if run.goodput_requests_per_s is None else f"{run.goodput_requests_per_s:.3g}",
            f"{run.preemptions:,}",
            f"{len(run.switches):,}",
            f"{run.steps:,}",
            f"{run.decisions:,}",
        ]
        for run in runs
    ]
    return _table(heads, [_row(row, text=(0,)) for row in rows])


def _latency_table(runs: Sequence[RunResult]) -> str:
    heads = [
        "run",
        *(f"{name} {percent}" for name in ("TTFT", "TPOT", "ITL", "E2E") for percent in _PERCENTS),
    ]
    rows = []
    for run in runs:
        cells = [run.layout]
        for values, scale in ((run.ttft_s, 1), (run.tpot_s, 1e3), (run.itl_s, 1e3), (run.e2e_s, 1)):
            cells += _percentiles(values, scale)
        rows.append(_row(cells, text=(0,)))
    return _table(heads, rows)


def _percentiles(values: Percentiles, scale: float) -> list[str]:
    found = (values.p50, values.p90, values.p95, values.p99)
    return ["–" if value is None else f"{value * scale:.4g}" for value in found]


def _switches(runs: Sequence[RunResult]) -> list[str]:
    parts = []
    for run in runs:
        if not run.switches:
            continue
        rows = [
            _row(
                [
                    f"{switch.time_s:,.2f}",
                    f"{switch.old_target} → {switch.new_target}",
                    f"{switch.seconds:.3g}",
                    f"{switch.bytes / 2**30:,.2f}",
                    f"{switch.steps:,}",
                    switch.outcome,
                    switch.reason,
                ],
                text=(1, 5, 6),
            )
            for switch in run.switches[:MAX_SWITCHES]
        ]
        what = f"; {CHANGES[run.layout]}" if run.layout in CHANGES else ""
        parts.append(f"<h3>{escape(run.layout)}: {len(run.switches):,}{escape(what)}</h3>")
        parts.append(_table(["at, s", "switch", "took, s", "GiB", "steps", "outcome", "reason"], rows))
        if len(run.switches) > MAX_SWITCHES:
            parts.append(f"<p>The first {MAX_SWITCHES} are shown; --json has all.</p>")
    return parts or ["<p>No run changed its layout.</p>"]


def _table(heads: Sequence[str], rows: Sequence[str]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    return f"<table>\n<tr>{head}</tr>\n" + "\n".join(rows) + "\n</table>"


def _row(cells: Sequence[str], *, text: tuple[int, ...]) -> str:
    """`text`: the columns that are words, not numbers."""
    kinds = (' class="text"' if place in text else "" for place in range(len(cells)))
    return (
        "<tr>"
        + "".join(f"<td{kind}>{escape(cell)}</td>" for kind, cell in zip(kinds, cells, strict=True))
        + "</tr>"
    )
