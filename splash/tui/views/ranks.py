"""Each rank: its weight slots, a strip of its pages by use, the rows it attended in the last step."""

from __future__ import annotations

from collections.abc import Mapping

from rich.text import Text

from splash.tui import palette
from splash.tui.state import RankState, Snapshot
from splash.tui.units import show_count, show_share
from splash.tui.views.lines import apportion, line

USE_ORDER = ("weight", "recurrent", *palette.LAYOUT_ORDER, "reserved", "retiring", "cached")
"""Left to right in a strip; any other use follows, free pages are last."""
MAX_SLOTS = 16


def ranks(view: Snapshot, width: int, height: int) -> list[Text]:
    """A line for each rank, a second one with counts where few ranks leave room.

    Ranks for which there is no room are counted in the last line.
    """
    num = len(view.ranks)
    if not num:
        return [line((" no rank yet", palette.FAINT))]
    shown = num if num <= height else max(height - 1, 0)
    slots = min(max(len(rank.slots) for rank in view.ranks), MAX_SLOTS)
    most_rows = max(rank.rows for rank in view.ranks)
    lines = []
    for number, rank in enumerate(view.ranks[:shown]):
        lines.append(_rank(number, rank, slots=slots, most_rows=most_rows, width=width))
        if 3 * num - 1 <= height:
            lines.append(_counts(rank.pages, 7 + slots))
            lines.append(line())
    if shown < num:
        lines.append(line((f" and {num - shown} more ranks", palette.LABEL)))
    return lines


def legend(view: Snapshot) -> Text:
    """What the slot blocks and the grey letters mean; uses only that are on view."""
    there = {word for rank in view.ranks for word in rank.slots}
    text = line(("slots" if there else "", palette.LABEL))
    for state, glyph in palette.SLOT_GLYPHS.items():
        if state in there:
            text.append(f" {glyph}", palette.slot_ink(state))
            text.append(f" {palette.SLOT_WORDS.get(state, state)}", palette.LABEL)
    uses = {use for rank in view.ranks for use, number in rank.pages.items() if number}
    named = [use for use in palette.USE_LETTERS if use in uses and use != "free"]
    if named:
        text.append("  pages", palette.LABEL)
        for use in named:
            text.append(f" {palette.USE_LETTERS[use]} {use}", palette.LABEL)
    return text


def _rank(number: int, rank: RankState, *, slots: int, most_rows: int, width: int) -> Text:
    """`0  █▓  TTTTTTDDD····  62 % free   14 rows`, with a bar for the rows where there is room."""
    text = line((f"{number:>3}  ", palette.STRONG)).append_text(_slots(rank.slots, slots))
    free = _free(rank.pages)
    rows = line((f"{show_count(rank.rows):>6}", palette.STRONG), (" rows ", palette.LABEL))
    if width >= 90:
        rows.append_text(_row_bar(rank.rows, most_rows, 10))
    room = width - text.cell_len - free.cell_len - rows.cell_len - 2
    text.append("  ").append_text(strip(rank.pages, max(room, 0)))
    return text.append_text(free).append_text(rows)


def _uses(pages: Mapping[str, int]) -> list[str]:
    """The uses that have pages, in the order of the strip."""
    others = sorted(use for use in pages if use not in USE_ORDER and use != "free")
    return [use for use in (*USE_ORDER, *others, "free") if pages.get(use, 0) > 0]


def _counts(pages: Mapping[str, int], indent: int) -> Text:
    """The pages of a strip in figures."""
    text = line((" " * indent, palette.PLAIN), (show_count(sum(pages.values())), palette.LABEL))
    text.append(" pages", palette.LABEL)
    for use in _uses(pages):
        style = palette.ink(use, False) if use in palette.LAYOUT_LETTERS else palette.LABEL
        text.append(f"  {use} ", style).append(show_count(pages[use]), palette.LABEL)
    return text


def _slots(words: list[str], width: int) -> Text:
    text = line()
    for word in words[:width]:
        text.append(palette.SLOT_GLYPHS.get(word, palette.UNKNOWN_LETTER), palette.slot_ink(word))
    return text.append(" " * (width - len(words[:width])))


def _free(pages: Mapping[str, int]) -> Text:
    whole = sum(pages.values())
    share = show_share(pages.get("free", 0) / whole) if whole else "  N/A"
    return line((f"  {share}", palette.STRONG), (" free", palette.LABEL))


def _row_bar(rows: int, most: int, width: int) -> Text:
    cells = round(rows / most * width) if most else 0
    cells = max(cells, 1) if rows else 0
    return line(("▪" * cells, palette.slot_ink("replica")), (" " * (width - cells), palette.PLAIN))


def strip(pages: Mapping[str, int], width: int) -> Text:
    """Pages by use, widths in proportion to counts, layouts in their colours and letters."""
    order, text = _uses(pages), line()
    if not order:
        return text.append("─" * width, palette.FAINT)
    for use, cells in zip(order, apportion([pages[use] for use in order], width), strict=True):
        if use in palette.LAYOUT_LETTERS:
            text.append(palette.letter(use) * cells, palette.cell(use))
        else:
            letter = palette.USE_LETTERS.get(use, palette.UNKNOWN_LETTER)
            text.append(letter * cells, palette.use_cell(use))
    return text
