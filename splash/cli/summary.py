"""The table at the end of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from splash.engine.report import RunReport

MAX_REQUESTS = 12
"""Requests that the table lists; the JSON has all."""


def show_report(console: Console, report: RunReport) -> None:
    """Throughput and latencies, every switch, and what a flip cost."""
    data = report.to_json()
    console.print(_summary_table(data["summary"]))
    if data["switches"] or data["refused"]:
        console.print(_switch_table(data["switches"], data["refused"]))
    cost = data["switch_cost"]
    if cost["flips"]:
        console.print(_cost_line(cost), highlight=False)


def seconds(value: float | None) -> str:
    """1.23 s, 4.56 ms or 7.8 µs; – for None."""
    if value is None:
        return "–"
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if abs(value) * scale >= 1:
            return f"{value * scale:.3g} {unit}"
    return f"{value * 1e6:.3g} µs"


def size(num_bytes: float) -> str:
    """Bytes in binary units."""
    for unit in ("B", "KiB", "MiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.4g} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.4g} GiB"


def _summary_table(summary: dict[str, Any]) -> Table:
    table = Table(title="Run", title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column()
    reasons = ", ".join(f"{count} {reason}" for reason, count in summary["finish_reasons"].items())
    rate = summary["output_tokens_per_s"]
    rows: list[tuple[str, str]] = [
        ("throughput", f"{rate:.1f} output tokens/s" if rate else "–"),
        ("tokens", f"{summary['output_tokens']} output, {summary['prompt_tokens']} prompt"),
        ("requests", f"{summary['requests']} ({reasons or 'none finished'})"),
        ("TTFT", _percentiles(summary["ttft_s"])),
        ("TPOT", _percentiles(summary["tpot_s"])),
        ("time", f"{seconds(summary['duration_s'])}, {summary['steps']} steps"),
        ("layouts", ", ".join(f"{name} {share:.0%}" for name, share in summary["layouts"].items()) or "–"),
    ]
    if summary["preemptions"]:
        rows.append(("preemptions", str(summary["preemptions"])))
    for row in rows:
        table.add_row(*row)
    return table


def _percentiles(values: dict[str, float | None]) -> str:
    return ", ".join(f"{name} {seconds(value)}" for name, value in values.items())


_COLUMNS: tuple[tuple[str, Callable[[dict[str, Any]], str]], ...] = (
    ("at step", lambda s: str(s["step"] - s["steps"])),
    ("switch", lambda s: f"{s['from']} → {s['to']}"),
    ("reason", lambda s: s["reason"]),
    ("outcome", lambda s: s["outcome"]),
    ("requests", lambda s: str(s["requests"])),
    ("bytes moved", lambda s: size(s["bytes_received"])),
    ("steps", lambda s: str(s["steps"])),
    ("time", lambda s: seconds(s["seconds"])),
    ("boundary ≤", lambda s: seconds(s["max_boundary_s"])),
)


def _switch_table(switches: list[dict[str, Any]], refused: list[dict[str, Any]]) -> Table:
    table = Table(title="Switches", title_justify="left")
    for name, _ in _COLUMNS:
        right = name in ("at step", "requests", "bytes moved", "steps", "time", "boundary ≤")
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for switch in switches:
        table.add_row(*(show(switch) for _, show in _COLUMNS))
    for refusal in refused:
        blanks = [""] * (len(_COLUMNS) - 4)
        table.add_row(str(refusal["step"]), f"→ {refusal['target']}", refusal["reason"], "refused", *blanks)
    return table


def _cost_line(cost: dict[str, Any]) -> str:
    excess, share = cost["excess_s"], cost["excess_share"]
    against = (
        "" if excess is None else f": {seconds(excess)} more at the median, {share:.2%} of a decode step"
    )
    return (
        f"{cost['flips']} boundaries with flips: p50 {seconds(cost['flip_s']['p50'])},"
        f" p95 {seconds(cost['flip_s']['p95'])}; without: p50 {seconds(cost['null_s']['p50'])},"
        f" p95 {seconds(cost['null_s']['p95'])}{against}"
    )
