"""The whole frame: which panels a size has room for, and how tall each is."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.text import Text

from splash.tui.state import Snapshot
from splash.tui.views.band import band
from splash.tui.views.events import events
from splash.tui.views.header import header
from splash.tui.views.lines import beside, block, box, fit, line, section
from splash.tui.views.predicted import predicted
from splash.tui.views.ranks import legend, ranks
from splash.tui.views.requests import requests, rows_of_step
from splash.tui.views.transitions import transitions

WIDE_WIDTH, WIDE_HEIGHT = 100, 30
"""From this size on panels have frames and stand side by side; below, thin rules part them."""

ASIDE = 20
"""Columns of the rule over the transitions that are its title's, and its ends'."""
LEAST_EVENTS = 2
"""Lines of events that frames must leave room for."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A renderable of one snapshot. Heights depend on the size and the rank count only, so nothing jumps."""

    view: Snapshot
    height: int | None = None
    """Lines to fill; None: those of the console."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        height = self.height or options.height or options.size.height
        for text in draw(self.view, options.max_width, height):
            yield from text.render(console)
            yield Segment.line()


def draw(view: Snapshot, width: int, height: int) -> list[Text]:
    """Exactly `height` lines of exactly `width` cells."""
    is_wide = (
        width >= WIDE_WIDTH and height >= WIDE_HEIGHT and _wide_heights(view, height)[-1] >= LEAST_EVENTS + 2
    )
    lines = _wide(view, width, height) if is_wide else _compact(view, width, height)
    return block(lines, width, height)


def last_look(view: Snapshot, width: int) -> list[Text]:
    """What remains on the screen when a view closes: the layouts over time."""
    width = min(width, 160)
    picture = [line(), *section("layouts over time", line(), band(view, width - 1, 7), width, 8)]
    return [fit(text, width) for text in picture] if view.history.buckets else []


def _compact(view: Snapshot, width: int, height: int) -> list[Text]:
    """Header, requests, then the panels that `_compact_heights` has room for."""
    tall = _compact_heights(max(1, len(view.ranks)), height - 3)
    inner = {name: max(0, rows - 1) for name, rows in tall.items()}
    moving = transitions(view, width, inner["transitions"])
    picture = band(view, width - 1, inner["band"])
    return [
        *header(view, width, 2),
        *requests(view, width, 1),
        *section("ranks", legend(view), ranks(view, width, inner["ranks"]), width, tall["ranks"]),
        *section("transitions", predicted(view, width - ASIDE), moving, width, tall["transitions"]),
        *section("layouts over time", line(), picture, width, tall["band"]),
        *section("events", line(), events(view, width, inner["events"]), width, tall["events"]),
    ]


def _compact_heights(num_ranks: int, room: int) -> dict[str, int]:
    """Lines of each panel, its rule included; 0 where it must go. The later in the list, the sooner."""
    heights: dict[str, int] = {}
    for moving, picture in ((5, 6), (4, 5)):
        left = room
        for name, least, wish in (
            ("transitions", 2, moving),
            ("ranks", 2, 1 + min(num_ranks, 8)),
            ("band", 4, picture),
            ("events", 2, left),
        ):
            given = min(wish, left)
            heights[name] = given if given >= least else 0
            left -= heights[name]
        heights["band"] += left if heights["band"] else 0
        if heights["events"] >= 3:
            break
    return heights


def _wide(view: Snapshot, width: int, height: int) -> list[Text]:
    """Ranks beside requests on top; transitions, band and events in full width below."""
    top, moving, picture, rest = _wide_heights(view, height)
    right = max(46, width * 3 // 10)
    inside = width - 4
    lines = header(view, width, 3)
    lines += beside(
        box("ranks", legend(view), ranks(view, width - right - 5, top - 2), width - right - 1, top),
        box("requests", rows_of_step(view), requests(view, right - 4, top - 2), right, top),
    )
    lines += box(
        "transitions",
        predicted(view, width - ASIDE - 1),
        transitions(view, inside, moving - 2),
        width,
        moving,
    )
    lines += box("layouts over time", line(), band(view, inside, picture - 2), width, picture)
    return lines + box("events", line(), events(view, inside, rest - 2), width, rest)


def _wide_heights(view: Snapshot, height: int) -> tuple[int, int, int, int]:
    """Lines of ranks, transitions, band and events, frames included."""
    top = min(2 + max(6, len(view.ranks)), 12)
    moving = 7 if height < 40 else 8
    left = height - 3 - top - moving
    picture = min(14, max(8, left * 6 // 10))
    return top, moving, picture, left - picture
