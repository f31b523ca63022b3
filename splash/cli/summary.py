"""The table at the end of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from splash.cli.reasons import Row, switch_table
from splash.engine.report import MIN_FLIPS, RunReport
from splash.tui.texts import show_target
from splash.tui.units import plural, show_bytes, show_seconds

TITLES = {
    "done": "Run",
    "interrupted": "Run, interrupted: what was served until then",
    "failed": "Run, failed: what was served until then",
}
MAX_REFUSED = 10
"""Refusals that are listed; the JSON has all."""


def show_report(console: Console, report: RunReport) -> None:
    """Throughput and latencies, every switch, and what a flip cost."""
    data = report.to_json()
    console.print(_summary_table(data["summary"], data["prediction"]))
    if data["switches"] or data["refused"]:
        console.print(_switches(console, data["switches"], data["refused"]))
    cost = data["switch_cost"]
    if cost["flips"]:
        console.print(_cost_lines(cost), highlight=False)


def show_refused(console: Console, refused: Sequence[tuple[str, str]]) -> None:
    """(which, why) of the requests that could not be served when they came."""
    for which, why in refused[:MAX_REFUSED]:
        console.print(Text(f"{which} was refused: {why}", style="bold red"), soft_wrap=True)
    if len(refused) > MAX_REFUSED:
        console.print(f"and {len(refused) - MAX_REFUSED} more", style="bold red")


def show_unreached(console: Console, report: RunReport, switches: Sequence[tuple[int, str]]) -> None:
    """Each `--switch` whose step never came."""
    last = report.steps[-1].step if report.steps else -1
    end = f", the last of them step {last:,}" if report.steps else ""
    for step, layout in switches:
        if step > last:
            ran = plural(len(report.steps), "step")
            console.print(f"--switch {step}:{layout} never came due: the run had {ran}{end}")


def _summary_table(summary: dict[str, Any], prediction: dict[str, Any]) -> Table:
    title = TITLES.get(summary["outcome"], "Run, up to here")
    table = Table(title=title, title_justify="left", show_header=False, box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in summary["finish_reasons"].items())
    never = f", {summary['never_arrived']:,} more never arrived" if summary["never_arrived"] else ""
    rate = summary["output_tokens_per_s"]
    rows: list[tuple[str, str]] = [
        ("throughput", f"{rate:,.1f} output tokens/s" if rate else "N/A"),
        ("tokens", f"{summary['output_tokens']:,} output, {summary['prompt_tokens']:,} prompt"),
        ("requests", f"{summary['requests']:,} ({reasons or 'none finished'}){never}"),
        ("TTFT", _percentiles(summary["ttft_s"])),
        ("TPOT", _percentiles(summary["tpot_s"])),
        ("time", f"{show_seconds(summary['duration_s'])}, {plural(summary['steps'], 'step')}"),
        ("layouts", ", ".join(f"{name} {share:.0%}" for name, share in summary["layouts"].items()) or "N/A"),
    ]
    if summary["preemptions"]:
        rows.append(("preemptions", f"{summary['preemptions']:,}"))
    if prediction["compared"]:
        rows.append(("predicted", _prediction(prediction)))
    for row in rows:
        table.add_row(*row)
    return table


def _prediction(prediction: dict[str, Any]) -> str:
    """How well the policy's model knows the decode step."""
    ratio = prediction["observed_over_predicted"]
    return (
        f"decode steps took {ratio['p50']:.3f} of it (p5 {ratio['p5']:.3f}, p95 {ratio['p95']:.3f}),"
        f" {plural(prediction['asked'], 'question')}"
    )


def _percentiles(values: dict[str, float | None]) -> str:
    return ", ".join(f"{name} {show_seconds(value)}" for name, value in values.items())


STALL = "stall"
_COLUMNS: tuple[tuple[str, Callable[[dict[str, Any]], str]], ...] = (
    ("at step", lambda s: f"{s['started_step']:,}"),
    ("switch", lambda s: f"{_target(s, 'from')} → {_target(s, 'to')}"),
    ("requests", lambda s: f"{s['requests']:,}"),
    ("moved", lambda s: show_bytes(s["bytes_received"])),
    ("steps", lambda s: f"{s['steps']:,}"),
    ("time", lambda s: show_seconds(s["seconds"])),
    (STALL, lambda s: show_seconds(s["max_boundary_s"])),
)


def _switches(
    console: Console, switches: list[dict[str, Any]], refused: list[dict[str, Any]]
) -> RenderableType:
    """`at step` it began; `steps` and `time` it took; `stall`: the longest batch boundary meanwhile, which a simulation
    has none of."""
    stalls = any(s["max_boundary_s"] for s in switches)
    columns = [column for column in _COLUMNS if stalls or column[0] != STALL]
    rows: list[Row] = [([show(s) for _, show in columns], _reason(s)) for s in switches]
    for refusal in refused:
        blank = [""] * (len(columns) - 2)
        reason = Text(f"refused: {refusal['reason']}", style="red")
        rows.append(([f"{refusal['step']:,}", f"→ {refusal['target']}", *blank], reason))
    return switch_table(console, "Switches", [name for name, _ in columns], rows, words=("switch",))


def _target(switch: dict[str, Any], end: str) -> str:
    return show_target(switch[end], switch[f"{end}_striped_from"])


def _reason(switch: dict[str, Any]) -> Text:
    return Text(
        switch["reason"] if switch["outcome"] == "done" else f"{switch['outcome']}: {switch['reason']}"
    )


def _cost_lines(cost: dict[str, Any]) -> str:
    """What a flip costs, where there were enough of them to tell it from noise."""
    if cost["flips"] < MIN_FLIPS:
        return (
            f"{plural(cost['flips'], 'boundary', 'boundaries')} with flips: too few to tell what a flip costs"
        )
    excess, share = cost["excess_s"], cost["excess_share"]
    lines = [
        f"{cost['flips']:,} boundaries with flips: {_percentiles(cost['flip_s'])}",
        f"{cost['nulls']:,} boundaries without: {_percentiles(cost['null_s'])}",
    ]
    if excess is not None:
        lines.append(f"a flip costs {show_seconds(excess)} at the median, {share:.2%} of a decode step")
    return "\n".join(lines)
