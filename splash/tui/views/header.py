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
    """What serves on what. Where room is short the step goes first, then words in brackets, then a part of the note and
    of the model's name; the hardware's stays."""
    if view.run is None:
        waiting = line((" splash ", palette.BRAND), (" waiting for the engine", palette.LABEL))
        return spread(waiting, _moment(view, "", with_step=True), width)
    device, ranks = view.hardware.partition(" (")[0], f", {plural(view.run.ranks, 'rank')}"
    forms = (
        (f"{view.hardware}{ranks}", True),
        (view.hardware, True),
        (view.hardware, False),
        (device, False),
    )
    for hardware, with_step in forms:
        left, right = _who(view.model, hardware), _moment(view, view.note, with_step=with_step)
        if left.cell_len + right.cell_len <= width:
            return spread(left, right, width)
    plain = _moment(view, "", with_step=False)
    note = _cut(view.note, width - left.cell_len - plain.cell_len - 2, least=width // 4 + 1)
    right = _moment(view, note, with_step=False)
    model = _cut(view.model, len(view.model) + width - left.cell_len - right.cell_len, least=1)
    return spread(_who(model, device), right, width)


def _cut(text: str, room: int, *, least: int) -> str:
    """Of `room` characters at most, but of `least` whatever the room."""
    room = max(room, least)
    return text if len(text) <= room else f"{text[: room - 1]}…"


def _who(model: str, hardware: str) -> Text:
    return line(
        (" splash ", palette.BRAND), (f" {model}", palette.STRONG), (f" on {hardware} ", palette.LABEL)
    )


def _moment(view: Snapshot, note: str, *, with_step: bool) -> Text:
    text = line((f" {note} ", palette.NOTE)) if note else line()
    text.append(f"  step {show_count(view.step)}" if with_step else "", palette.LABEL)
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
        *([] if view.boundary.p95 == 0 else [("boundary", _pair(view.boundary))]),  # a simulation has none
        ("tokens", show_count(view.totals.output_tokens)),
        ("moved", f"{show_bytes(view.kv_bytes)} KV, {show_bytes(view.weight_bytes)} weights"),
    ]
    return fit(fields(pairs, width), width)


def _pair(figure: Percentiles) -> str:
    """Median and 95th percentile of the latest."""
    if figure.p50 is None:
        return "N/A"
    return f"{show_seconds(figure.p50)}, p95 {show_seconds(figure.p95)}"
