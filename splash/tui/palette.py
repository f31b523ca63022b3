"""The one palette: a colour and a letter for each layout, the same in every panel.

Placement is the hue, projection the shade: owner layouts are warm (dp, lighter dop), striped ones cool (cp,
darker dcp), by head alone is magenta. Any two stay apart for protan, deutan and tritan eyes (a test
simulates them), and every cell carries its letter, so nothing depends on colour alone.
"""

from __future__ import annotations

from functools import lru_cache

from rich.color import Color, blend_rgb
from rich.style import Style

from splash.layout.layouts import SECTION_ORDER

LAYOUT_ORDER: tuple[str, ...] = tuple(layout.name for layout in SECTION_ORDER)
"""The order in every bar, strip and stack: that of the sections of a step."""

LAYOUT_COLORS: dict[str, str] = {
    "tp": "#b83d83",
    "dcp": "#6678e8",
    "dop": "#f7dfa5",
    "cp": "#6fd3f0",
    "dp": "#e69f00",
}
LAYOUT_LETTERS: dict[str, str] = {"tp": "T", "dcp": "S", "dop": "O", "cp": "C", "dp": "D"}
"""S of dcp is for striped with shards, O of dop for owner."""

UNKNOWN_COLOR = "#8b93a1"
UNKNOWN_LETTER = "?"

USE_COLORS: dict[str, str] = {
    "weight": "#5f6778",
    "reserved": "#4c5a52",
    "retiring": "#5a4a4a",
    "cached": "#46505f",
    "recurrent": "#6b6250",
    "free": "#23272f",
}
USE_LETTERS: dict[str, str] = {
    "weight": "w",
    "reserved": "r",
    "retiring": "x",
    "cached": "c",
    "recurrent": "s",
    "free": "·",
}
"""Pages that belong to no layout: lower case, greys."""

SLOT_GLYPHS: dict[str, str] = {"own": "█", "replica": "▓", "filling": "▒", "draining": "░", "kv": "·"}
"""The fuller the block, the more of the shard is there."""
SLOT_COLORS: dict[str, str] = {
    "own": "#c9d1dc",
    "replica": "#9fb6d9",
    "filling": "#9fb6d9",
    "draining": "#9a8f86",
    "kv": "#5f6778",
}
SLOT_WORDS: dict[str, str] = {"kv": "given to KV"}

PLAIN = Style()
STRONG = Style(bold=True)
BRAND = Style(bold=True, color="#6fd3f0")
LABEL = Style(color="#8b93a1")
FAINT = Style(color="#5f6778")
BORDER = Style(color="#3a414d")
TITLE = Style(color="#aab2c0", bold=True)
WARNING = Style(color="#e8705a", bold=True)
NOTE = Style(color="#14161c", bgcolor="#d8c98a", bold=True)

_INK_DARK = Color.parse("#14161c").get_truecolor()
_INK_LIGHT = Color.parse("#ffffff").get_truecolor()


def order_of(names: object) -> list[str]:
    """The known layouts in the palette's order, then any other name that is there."""
    given = list(names)  # type: ignore[call-overload]
    return [x for x in LAYOUT_ORDER if x in given] + sorted(x for x in given if x not in LAYOUT_LETTERS)


def letter(name: str) -> str:
    return LAYOUT_LETTERS.get(name, UNKNOWN_LETTER)


def color(name: str) -> str:
    return LAYOUT_COLORS.get(name, UNKNOWN_COLOR)


@lru_cache(maxsize=64)
def ink(name: str, bold: bool = True) -> Style:
    """Text in a layout's colour."""
    return Style(color=color(name), bold=bold)


@lru_cache(maxsize=64)
def chip(name: str) -> Style:
    """Dark or light text on a layout's colour."""
    back = Color.parse(color(name))
    return Style(color=_ink_on(back), bgcolor=back, bold=True)


@lru_cache(maxsize=64)
def cell(name: str) -> Style:
    """A filled cell whose letter shows softly, so that many of them read as one surface."""
    back = Color.parse(color(name))
    soft = blend_rgb(back.get_truecolor(), _ink_on(back).get_truecolor(), 0.3)
    return Style(color=Color.from_triplet(soft), bgcolor=back)


@lru_cache(maxsize=64)
def use_cell(use: str) -> Style:
    """As `cell`, for pages that hold no request's KV."""
    back = Color.parse(USE_COLORS.get(use, UNKNOWN_COLOR))
    soft = blend_rgb(back.get_truecolor(), _INK_LIGHT, 0.3)
    return Style(color=Color.from_triplet(soft), bgcolor=back)


@lru_cache(maxsize=64)
def slot_ink(state: str) -> Style:
    return Style(color=SLOT_COLORS.get(state, UNKNOWN_COLOR))


def _ink_on(back: Color) -> Color:
    red, green, blue = back.get_truecolor()
    bright = 0.299 * red + 0.587 * green + 0.114 * blue
    return Color.from_triplet(_INK_DARK if bright > 120 else _INK_LIGHT)
