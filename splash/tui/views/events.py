"""The last events, newest at the bottom, layout names in their colours."""

from __future__ import annotations

import re

from rich.style import Style
from rich.text import Text

from splash.tui import palette
from splash.tui.state import LogLine, Snapshot
from splash.tui.units import show_clock
from splash.tui.views.lines import fold, line

_LAYOUT_WORD = re.compile(r"(?<![\w-])(" + "|".join(palette.LAYOUT_ORDER) + r")(?![\w-])")

_STYLES: dict[str, Style] = {
    "run": palette.PLAIN,
    "switch": palette.STRONG,
    "move": palette.PLAIN,
    "request": palette.LABEL,
    "warning": palette.WARNING,
}


INDENT = 11
"""Where the text of an event begins."""


def events(view: Snapshot, width: int, height: int) -> list[Text]:
    """The latest `height` lines of the log; an event that is longer than a line takes more."""
    if height <= 0:
        return []
    lines = [folded for entry in view.log[-height:] for folded in fold(_event(entry), width, indent=INDENT)]
    return lines[-height:]


def _event(entry: LogLine) -> Text:
    text = line((f" {show_clock(entry.t):>8}  ", palette.FAINT), (entry.text, _STYLES[entry.kind]))
    if entry.kind != "warning":
        colour_layouts(text)
    return text


def colour_layouts(text: Text) -> None:
    """Every layout named in a text takes its colour."""
    for found in _LAYOUT_WORD.finditer(text.plain):
        text.stylize(palette.ink(found[1]), found.start(), found.end())
