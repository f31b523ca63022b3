"""What the policy expects of a decode step in each layout, and what one took: a line, the fullest that fits."""

from __future__ import annotations

from rich.text import Text

from splash.core.events import PolicyAsked
from splash.tui import palette
from splash.tui.state import Snapshot
from splash.tui.units import show_seconds
from splash.tui.views.lines import line

BEST = "▸"
"""Before the least."""


def predicted(view: Snapshot, width: int) -> Text:
    """`decode step ▸O dop 71.5 ms  T tp 73.0 ms, observed 72.4 ms  …`, layouts in their colours, the best first;
    empty where nothing is predicted, or nothing fits."""
    if view.asked is None:
        return line()
    forms = (_figures(view.asked, with_names=names, with_label=label) for names, label in FORMS)
    return next((text for text in forms if text.cell_len <= width), line())


FORMS = ((True, "predicted decode step "), (True, "step "), (False, "step "), (False, ""))
"""(layouts by name or by letter, what the figures are), the fullest first."""


def _figures(asked: PolicyAsked, *, with_names: bool, with_label: str) -> Text:
    text = line((with_label, palette.LABEL))
    for place, (name, seconds) in enumerate(sorted(asked.predicted.items(), key=lambda item: item[1])):
        known = f"{palette.letter(name)} {name}" if with_names else palette.letter(name)
        text.append("  " if place else "")
        text.append(f"{'' if place else BEST}{known} {show_seconds(seconds)}", palette.ink(name, place == 0))
        if name == asked.target and asked.observed_s is not None:
            text.append(", observed " if with_names else "/", palette.LABEL)
            text.append(show_seconds(asked.observed_s), palette.STRONG)
    return text
