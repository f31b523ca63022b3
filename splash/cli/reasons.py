"""The table of switches: why each was made stands in its last column, or, where that would be too narrow, below."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

LEAST = 44
"""Columns in which a reason of several lines can be read."""

Row = tuple[Sequence[str | Text], Text]
"""Cells, of which the first names the row, and a reason."""


def switch_table(
    console: Console, title: str, columns: Sequence[str], rows: Sequence[Row], *, words: Sequence[str]
) -> RenderableType:
    """`words`: columns that are no numbers."""
    beside = _fits_beside(console, columns, rows)
    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0)
    )
    for name in columns:
        table.add_column(name, justify="left" if name in words else "right", no_wrap=True)
    if beside:
        table.add_column("reason")
    for cells, reason in rows:
        table.add_row(*cells, *([reason] if beside else []))
    return table if beside else Group(table, _list(columns[0], rows))


def _fits_beside(console: Console, columns: Sequence[str], rows: Sequence[Row]) -> bool:
    widths = [max(len(name), *(len(cells[at]) for cells, _ in rows)) for at, name in enumerate(columns)]
    room = console.width - sum(width + 2 for width in widths)
    return room >= LEAST or all(len(reason) <= room for _, reason in rows)


def _list(label: str, rows: Sequence[Row]) -> Table:
    """`step  reason`, in as many lines as it takes."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(label, justify="right", no_wrap=True)
    table.add_column("reason")
    for cells, reason in rows:
        table.add_row(cells[0], reason)
    return table
