"""Who serves what on what, where it is heading, and how fast: the lines on top."""

from __future__ import annotations

from rich.text import Text

from splash.tui import palette
from splash.tui.rates import Percentiles
from splash.tui.state import Snapshot
from splash.tui.units import plural, show_bytes, show_clock, show_count, show_rate, show_seconds
from splash.tui.views.lines import fields, fit, line, spread


def header(view: Snapshot, width: int, height: int) -> list[Text]:
    """One to three lines: what runs; target and load; latencies and totals."""
    return [_title(view, width), _load(view, width), _figures(view, width)][:height]


def _title(view: Snapshot, width: int) -> Text:
    left = line((" splash ", palette.BRAND))
    if view.run is None:
        left.append(" waiting for the engine", palette.LABEL)
    else:
        left.append(f" {view.model}", palette.STRONG)
        left.append(f" on {view.hardware}", palette.LABEL)
    right = _moment(view, with_step=width >= 100 or not view.note)
    if view.note:
        room = max(12, width - 38 - right.cell_len)
        note = view.note if len(view.note) <= room else view.note[: room - 1] + "…"
        right = line((f" {note} ", palette.NOTE)).append_text(right)
    if view.run is not None:
        ranks = f", {plural(view.run.ranks, 'rank')}"
        if not view.note or left.cell_len + len(ranks) + 1 + right.cell_len <= width:
            left.append(ranks, palette.LABEL)
        left.append(" ")
    return spread(left, right, width)


def _moment(view: Snapshot, *, with_step: bool) -> Text:
    text = line((f"  step {show_count(view.step)}" if with_step else "", palette.LABEL))
    text.append(f"  {show_clock(view.t)} ", palette.STRONG)
    if view.finished is not None:
        style = palette.STRONG if view.finished.outcome == "done" else palette.WARNING
        text.append(f" {view.finished.outcome} ", style)
    return text


def _load(view: Snapshot, width: int) -> Text:
    text = line((" target ", palette.LABEL))
    text.append_text(target_chip(view.target, view.whole_target))
    if view.policy:
        text.append("  policy ", palette.LABEL).append(view.policy, palette.STRONG)
    pairs = [
        ("", f"{show_rate(view.tokens_per_s)} tok/s"),
        ("running", show_count(view.num_running)),
        ("waiting", show_count(view.waiting)),
        ("done", f"{show_count(view.totals.finished)} of {show_count(view.totals.arrived)}"),
        ("preempted", show_count(view.totals.preempted)),
        ("flips", show_count(view.totals.flips)),
    ]
    shown = pairs if view.totals.preempted else [pair for pair in pairs if pair[0] != "preempted"]
    return fit(text.append_text(fields(shown, width - text.cell_len, margin=3)), width)


def target_chip(layout: str, name: str) -> Text:
    """The layout's letter and the target's name on its colour."""
    if not layout:
        return line((" N/A ", palette.LABEL))
    return line((f" {palette.letter(layout)} {name} ", palette.chip(layout)))


def _figures(view: Snapshot, width: int) -> Text:
    pairs = [
        ("TTFT", _pair(view.ttft)),
        ("TPOT", _pair(view.tpot)),
        ("step", show_seconds(view.forward.p50)),
        ("boundary", _pair(view.boundary)),
        ("tokens", show_count(view.totals.output_tokens)),
        ("moved", f"{show_bytes(view.kv_bytes)} KV, {show_bytes(view.weight_bytes)} weights"),
    ]
    return fit(fields(pairs, width), width)


def _pair(figure: Percentiles) -> str:
    """Median and 95th percentile of the latest."""
    if figure.p50 is None:
        return "N/A"
    return f"{show_seconds(figure.p50)}, p95 {show_seconds(figure.p95)}"
