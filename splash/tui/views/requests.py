"""Requests by layout: one stacked bar where rows are few, else a bar for each layout."""

from __future__ import annotations

from rich.text import Text

from splash.tui import palette
from splash.tui.state import Snapshot
from splash.tui.units import plural, show_count
from splash.tui.views.lines import Part, apportion, line, spread


def requests(view: Snapshot, width: int, height: int) -> list[Text]:
    """`height` decides the form: from six lines on, each layout and the queue have their own."""
    if height >= len(palette.LAYOUT_ORDER) + 1:
        return _by_layout(view, width)
    return [_stacked(view, width)]


def rows_of_step(view: Snapshot) -> Text:
    """The kinds of rows in the last step."""
    text = line((show_count(view.decode_rows), palette.STRONG), (" decode  ", palette.LABEL))
    noun = " prefill row" if view.prefill_rows == 1 else " prefill rows"
    return text.append(show_count(view.prefill_rows), palette.STRONG).append(noun, palette.LABEL)


def _stacked(view: Snapshot, width: int) -> Text:
    """All requests in one bar, as long as the present load is against the heaviest so far."""
    names = palette.order_of(view.running)
    right = line()
    for name in names:
        right.append(f"  {palette.letter(name)} {name} ", palette.ink(name))
        right.append(show_count(view.running[name]), palette.STRONG)
    right.append("  waiting ", palette.LABEL).append(show_count(view.waiting), palette.STRONG)
    right.append(" ")
    label = " requests "
    room = max(0, width - right.cell_len - len(label) - 1)
    amounts = [view.running[name] for name in names]
    now = sum(amounts) + view.waiting
    length = max(round(room * now / view.peak), min(now, 1)) if view.peak else 0
    left = line((label, palette.LABEL))
    cells = apportion([*amounts, view.waiting], min(length, room))
    for name, number in zip(names, cells, strict=False):
        left.append(palette.letter(name) * number, palette.cell(name))
    left.append("░" * cells[-1], palette.FAINT)
    return spread(left, right, width)


def _by_layout(view: Snapshot, width: int) -> list[Text]:
    """Bars on one scale; rows are those of the last step."""
    names = [
        *palette.LAYOUT_ORDER,
        *(x for x in palette.order_of(view.running) if x not in palette.LAYOUT_ORDER),
    ]
    most = max([view.waiting, *view.running.values()], default=0)
    lines = []
    for name in names:
        number, letter = view.running.get(name, 0), palette.letter(name)
        text = line((f"{letter} {name:<9}", palette.ink(name) if number else palette.FAINT))
        fill = (letter, palette.cell(name))
        lines.append(_bar(text, fill, number, most, plural(view.rows_by_layout.get(name, 0), "row"), width))
    waiting = line((f"{'  waiting':<11}", palette.LABEL if view.waiting else palette.FAINT))
    lines.append(_bar(waiting, ("░", palette.FAINT), view.waiting, most, "", width))
    return lines


def _bar(left: Text, fill: Part, number: int, most: int, rows: str, width: int) -> Text:
    right = line(
        (f"{show_count(number):>7}", palette.STRONG if number else palette.FAINT),
        (f"{rows:>13}", palette.LABEL if number else palette.FAINT),
    )
    room = max(0, width - left.cell_len - right.cell_len)
    cells = max(round(room * number / most), 1) if number else 0
    return spread(left.append(fill[0] * cells, fill[1]), right, width)
