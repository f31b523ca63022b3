"""What the policy expects of a decode step in each layout, and what one took: a line, the fullest that fits."""

from __future__ import annotations

from rich.text import Text

from splash.core.events import PolicyAsked
from splash.tui import palette
from splash.tui.state import Snapshot
from splash.tui.units import show_seconds
from splash.tui.views.lines import line


def predicted(view: Snapshot, width: int) -> Text:
    """`step, best first: O dop 71.5 ms  T tp 73.0 ms, observed 72.4 ms  …`, or `ms, best first: O 71.5  T 73/72.4  …`,
    layouts in their colours; empty where nothing is predicted, or nothing fits."""
    if view.asked is None:
        return line()
    forms = (_figures(view.asked, label, with_names=names) for label, names in FORMS)
    return next((text for text in forms if text.cell_len <= width), line())


FORMS = (
    ("predicted decode step, best first: ", True),
    ("step, best first: ", True),
    ("predicted decode step, ms, best first: ", False),
    ("ms, best first: ", False),
    ("ms ", False),
)
"""(what the figures are, whether layouts are named), the fullest first."""


def _figures(asked: PolicyAsked, label: str, *, with_names: bool) -> Text:
    show, observed = (show_seconds, ", observed ") if with_names else (_milliseconds, "/")
    text = line((label, palette.LABEL))
    for place, (name, seconds) in enumerate(sorted(asked.predicted.items(), key=lambda item: item[1])):
        known = f"{palette.letter(name)} {name}" if with_names else palette.letter(name)
        text.append("  " if place else "")
        text.append(f"{known} {show(seconds)}", palette.ink(name, place == 0))
        if name == asked.target and asked.observed_s is not None:
            text.append(observed, palette.LABEL).append(show(asked.observed_s), palette.STRONG)
    return text


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g}" if seconds < 1 else f"{seconds * 1e3:.0f}"
