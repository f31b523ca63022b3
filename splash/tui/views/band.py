"""Layouts over time: requests stacked by layout, one column per stretch of time, the target underneath."""

from __future__ import annotations

from collections.abc import Sequence

from rich.style import Style
from rich.text import Text

from splash.tui import palette
from splash.tui.history import Column
from splash.tui.state import Snapshot
from splash.tui.units import show_clock
from splash.tui.views.lines import line

GUTTER = 8
_EIGHTHS = " ▁▂▃▄▅▆▇█"


def band(view: Snapshot, width: int, height: int) -> list[Text]:
    """The stack, then the target, then (from eight lines on) tokens per second, then the time axis.

    Every filled cell carries its layout's letter, so the picture reads without colour too.
    """
    room = max(width - GUTTER, 1)
    columns = view.history.columns(room)
    if not columns:
        return [line((" nothing yet", palette.FAINT))]
    speed = [_speed(columns)] if height >= 8 else []
    rows = max(1, height - 2 - len(speed))
    return [*_stack(columns, rows), _targets(columns), *speed, _axis(view, len(columns), room)][:height]


def _stack(columns: Sequence[Column], rows: int) -> list[Text]:
    peak = max(1.0, *(column.total for column in columns))
    drawn = [_cells(column, rows, peak) for column in columns]
    lines = []
    for row in reversed(range(rows)):
        label = f"{peak:,.0f}" if row == rows - 1 else ("0" if row == 0 and rows > 1 else "")
        text = line((f"{label:>{GUTTER - 2}} ", palette.LABEL), ("│", palette.BORDER))
        lines.append(_append_runs(text, [cells[row] for cells in drawn]))
    return lines


def _append_runs(text: Text, cells: Sequence[tuple[str, Style]]) -> Text:
    """Neighbours of one style become one span."""
    run, style = "", palette.PLAIN
    for content, its_style in cells:
        if its_style is not style:
            text.append(run, style)
            run, style = "", its_style
        run += content
    return text.append(run, style)


def _cells(column: Column, rows: int, peak: float) -> list[tuple[str, Style]]:
    """A column from the bottom up: each cell belongs to the layout that covers most of it."""
    names = palette.order_of(column.requests)
    unit = peak / rows
    tops, top = [], 0.0
    for name in names:
        top += column.requests[name]
        tops.append((top, name))
    return [_cell(row * unit, unit, tops, is_bottom=row == 0) for row in range(rows)]


def _cell(low: float, unit: float, tops: list[tuple[float, str]], *, is_bottom: bool) -> tuple[str, Style]:
    if not tops or tops[-1][0] <= low:
        return " ", palette.PLAIN
    covered: dict[str, float] = {}
    begin = 0.0
    for top, name in tops:
        overlap = min(top, low + unit) - max(begin, low)
        if overlap > 1e-9:
            covered[name] = overlap
        begin = top
    if not covered:
        return " ", palette.PLAIN
    owner = max(covered, key=covered.__getitem__)
    share = sum(covered.values()) / unit
    if share > 0.94:
        return palette.letter(owner), palette.cell(owner)
    if is_bottom:
        return palette.letter(owner), palette.ink(owner, False)
    return _EIGHTHS[max(1, round(share * 8))], palette.ink(owner, False)


def _targets(columns: Sequence[Column]) -> Text:
    """A rule in the target's colour, its letter where it begins."""
    text = line((f"{'target':>{GUTTER - 2}} ", palette.LABEL), ("│", palette.BORDER))
    cells, previous = [], None
    for column in columns:
        name = column.target
        mark = "━" if name == previous else palette.letter(name)
        cells.append((mark if name else " ", palette.ink(name)))
        previous = name
    return _append_runs(text, cells)


def _speed(columns: Sequence[Column]) -> Text:
    most = max(column.tokens_per_s for column in columns)
    text = line((f"{'tok/s':>{GUTTER - 2}} ", palette.LABEL), ("│", palette.BORDER))
    marks = [
        _EIGHTHS[max(1, round(column.tokens_per_s / most * 8))] if column.tokens_per_s > 0 else " "
        for column in columns
    ]
    return text.append("".join(marks), palette.LABEL)


def _axis(view: Snapshot, num_columns: int, room: int) -> Text:
    """From the start to now, with what one column stands for where there is room."""
    column_s = view.history.column_s(room)
    now = show_clock(view.history.t)
    text = line((" " * (GUTTER - 1) + "└", palette.BORDER))
    each = f" one column {column_s:.2f} s " if num_columns >= 40 else ""
    dashes = max(0, num_columns - len(now) - 1 - len(each))
    text.append("─" * (dashes // 2), palette.BORDER).append(each, palette.FAINT)
    text.append("─" * (dashes - dashes // 2), palette.BORDER)
    return text.append(f" {now}", palette.LABEL)
