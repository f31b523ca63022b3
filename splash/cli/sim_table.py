"""The tables at the end of a simulation: runs side by side, their latencies, and what every switch cost."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from splash.cli.reasons import Row, switch_table
from splash.sim.modes import CHANGES, ORACLE
from splash.sim.result import Percentiles, RunResult, SwitchRecord
from splash.tui.palette import LAYOUT_LETTERS, ink, order_of
from splash.tui.units import plural, show_bytes, show_clock, show_count, show_rate, show_seconds

MAX_SWITCHES = 12
"""Of one run that the table lists; the JSON has all."""


def show_results(console: Console, runs: Sequence[RunResult]) -> None:
    """At most 100 columns wide, and still a table at 80."""
    console.print(_runs_table(runs))
    console.print(_latency_table(runs))
    for run in runs:
        if run.switches:
            console.print(_switches_of(console, run))
    for text in _refusals(runs):
        console.print(text, style="bold red", soft_wrap=True, markup=False)


def _refusals(runs: Sequence[RunResult]) -> Iterator[str]:
    """Which requests could not be served at all; a line for all runs that refused the same."""
    layouts = defaultdict(list)
    for run in runs:
        layouts[run.refused].append(run.layout)
    for refused, names in layouts.items():
        if refused:
            where = "" if len(names) == len(runs) else f" in {', '.join(names)}"
            more = f"; and {len(refused) - 1:,} more" if len(refused) > 1 else ""
            yield f"{plural(len(refused), 'request')} refused{where}: {refused[0]}{more}"


def _table(title: str, columns: Sequence[str], *, words: Sequence[str], wraps: Sequence[str] = ()) -> Table:
    """`words`: columns that are no numbers; `wraps`: those that may take several lines."""
    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0)
    )
    for name in columns:
        table.add_column(name, justify="left" if name in words else "right", no_wrap=name not in wraps)
    return table


# ---- runs


def _runs_table(runs: Sequence[RunResult]) -> Table:
    """`of best`: throughput over that of the best run. A column in which no run has anything to say is left out."""
    best = max(run.output_tokens_per_s for run in runs)
    columns: list[tuple[str, list[str | Text]]] = [
        ("layout", [_name(run.layout) for run in runs]),
        ("tokens/s", [show_rate(run.output_tokens_per_s) for run in runs]),
        ("of best", [f"{run.output_tokens_per_s / best:.3f}" if best else "N/A" for run in runs]),
        ("makespan", [show_seconds(run.makespan_s) for run in runs]),
    ]
    if any(run.goodput_requests_per_s is not None for run in runs):
        columns.append(("goodput/s", [_goodput(run) for run in runs]))
    if any(run.preemptions for run in runs):
        columns.append(("preempted", [show_count(run.preemptions) for run in runs]))
    if any(run.layout not in LAYOUT_LETTERS for run in runs):
        columns.append(("switches", [_switches(run) for run in runs]))
        columns.append(("share of time", [_shares(run) for run in runs]))
    table = _table(
        "Runs",
        [name for name, _ in columns],
        words=("layout", "share of time"),
        wraps=("share of time",),
    )
    for row in zip(*(cells for _, cells in columns), strict=True):
        table.add_row(*row)
    return table


def _goodput(run: RunResult) -> str:
    return "N/A" if run.goodput_requests_per_s is None else f"{run.goodput_requests_per_s:.3g}"


def _switches(run: RunResult) -> str:
    """`3 in 1.2 s`."""
    if not run.switches:
        return "0"
    if run.layout == ORACLE:
        return f"{len(run.switches)}, free"
    return f"{len(run.switches)} in {show_seconds(sum(switch.seconds for switch in run.switches))}"


def _shares(run: RunResult) -> Text:
    """`tp 40%, dop 60%`, each in its colour."""
    parts = [
        Text(f"{name} {run.time_share[name]:.0%}", style=ink(name, bold=False))
        for name in order_of(run.time_share)
        if run.time_share[name] > 0
    ]
    return Text(", ").join(parts)


def _name(layout: str, shown: str | None = None) -> Text:
    """In the colour of a layout."""
    return Text(shown or layout, style=ink(layout) if layout in LAYOUT_LETTERS else "bold")


# ---- latencies


def _latency_table(runs: Sequence[RunResult]) -> Table:
    """A block for each latency, a line for each run."""
    columns = ("latency", "layout", "mean", "p50", "p90", "p95", "p99")
    table = _table("Latencies", columns, words=("latency", "layout"))
    for name in ("TTFT", "TPOT", "ITL", "E2E"):
        for place, run in enumerate(runs):
            values = _latency(run, name)
            shown = (values.mean, values.p50, values.p90, values.p95, values.p99)
            table.add_row(
                name if place == 0 else "",
                _name(run.layout),
                *map(show_seconds, shown),
                end_section=place == len(runs) - 1,
            )
    return table


def _latency(run: RunResult, name: str) -> Percentiles:
    return {"TTFT": run.ttft_s, "TPOT": run.tpot_s, "ITL": run.itl_s, "E2E": run.e2e_s}[name]


# ---- switches


def _switches_of(console: Console, run: RunResult) -> RenderableType:
    """When each was decided, how long it took, what it moved, and why."""
    outcomes = Counter(switch.outcome for switch in run.switches)
    title = f"Switches of {run.layout}: " + ", ".join(f"{n} {name}" for name, n in outcomes.items())
    if run.layout in CHANGES:
        title += f"; {CHANGES[run.layout]}"
    columns = ("at", "switch") if run.layout == ORACLE else ("at", "switch", "took", "moved", "steps")
    shown = run.switches[:MAX_SWITCHES]
    rows: list[Row] = [(_cells(switch)[: len(columns)], _reason(switch)) for switch in shown]
    if len(run.switches) > MAX_SWITCHES:
        more = Text(f"{len(run.switches) - MAX_SWITCHES} more; --json has all")
        rows.append((["…", *[""] * (len(columns) - 1)], more))
    return switch_table(console, title, columns, rows, words=("switch",))


def _cells(switch: SwitchRecord) -> list[str | Text]:
    """As the columns; of a switch that costs nothing the first two have a meaning."""
    return [
        show_clock(switch.time_s),
        Text.assemble(_name(switch.old, switch.old_target), " → ", _name(switch.new, switch.new_target)),
        show_seconds(switch.seconds),
        show_bytes(switch.bytes),
        show_count(switch.steps),
    ]


def _reason(switch: SwitchRecord) -> Text:
    return Text(switch.reason if switch.outcome == "done" else f"{switch.outcome}: {switch.reason}")
