"""Lines of exact width, and the few shapes that panels are made of. The terminal wraps nothing of it, ever."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.style import Style
from rich.text import Text

from splash.tui import palette

Part = tuple[str, Style]


def line(*parts: Part) -> Text:
    """One line of styled parts."""
    text = Text(no_wrap=True, overflow="crop", end="")
    for content, style in parts:
        text.append(content, style)
    return text


def fit(text: Text, width: int) -> Text:
    """Cut with an ellipsis, or padded, to exactly `width` cells (in place)."""
    text.truncate(max(width, 0), overflow="ellipsis", pad=True)
    return text


def fold(text: Text, width: int, *, indent: int, first: int = 0, at_most: int = 3) -> list[Text]:
    """Lines of `width` cells (the first of `first`, if that is given), broken between words, the later ones indented.
    What is left for the last of `at_most` may be too long, and is to be cut."""
    lines, room, rest = list[Text](), first or width, text
    while rest.cell_len > room and len(lines) + 1 < at_most:
        at = rest.plain.rfind(" ", 0, room + 1)
        if not rest.plain[: max(at, 0)].strip():
            break
        lines.append(rest[:at])
        rest = line((" " * indent, palette.PLAIN)).append_text(rest[at + 1 :])
        room = width
    return [*lines, rest]


def spread(left: Text, right: Text, width: int) -> Text:
    """`left` and `right` at the two ends; the left gives way."""
    room = width - right.cell_len
    if room < 1:
        return fit(left, width)
    return fit(left, room).append_text(right)


def fields(pairs: Iterable[tuple[str, str]], width: int, *, gap: int = 3, margin: int = 1) -> Text:
    """`label value` pairs, as many whole ones as there is room for."""
    text = line((" " * margin, palette.PLAIN))
    for label, value in pairs:
        parts = [(label, palette.LABEL), (" " if label else "", palette.PLAIN), (value, palette.STRONG)]
        piece = line(*parts)
        used = text.cell_len
        space = gap if used > margin else 0
        if used + space + piece.cell_len > width:
            break
        text.append(" " * space)
        text.append_text(piece)
    return text


def block(lines: Sequence[Text], width: int, height: int) -> list[Text]:
    """Exactly `height` lines of exactly `width` cells."""
    shown = [fit(text, width) for text in lines[:height]]
    return shown + [fit(line(), width) for _ in range(height - len(shown))]


def section(title: str, aside: Text, lines: Sequence[Text], width: int, height: int) -> list[Text]:
    """A thin titled rule with its lines below: `height` in all, the rule included."""
    head = line(("── ", palette.BORDER), (title, palette.TITLE), (" ", palette.PLAIN))
    return [_rule(head, aside, line(), width), *block(lines, width, height - 1)][:height]


def box(title: str, aside: Text, lines: Sequence[Text], width: int, height: int) -> list[Text]:
    """A titled frame around its lines: `height` in all, both borders included."""
    head = line(("╭─ ", palette.BORDER), (title, palette.TITLE), (" ", palette.PLAIN))
    top = _rule(head, aside, line(("╮", palette.BORDER)), width)
    side = ("│", palette.BORDER)
    middle = [
        line(side, (" ", palette.PLAIN)).append_text(text).append_text(line((" ", palette.PLAIN), side))
        for text in block(lines, width - 4, height - 2)
    ]
    return [top, *middle, line(("╰" + "─" * (width - 2) + "╯", palette.BORDER))][:height]


def _rule(head: Text, aside: Text, end: Text, width: int) -> Text:
    if aside.cell_len:
        tail = line((" ", palette.PLAIN)).append_text(aside).append_text(line((" ─", palette.BORDER)))
        if head.cell_len + tail.cell_len + end.cell_len + 2 > width:
            tail = line()
    else:
        tail = line()
    tail.append_text(end)
    dashes = max(0, width - head.cell_len - tail.cell_len)
    return fit(head.append("─" * dashes, palette.BORDER).append_text(tail), width)


def beside(left: Sequence[Text], right: Sequence[Text], gap: int = 1) -> list[Text]:
    """Two blocks of equal height side by side."""
    space = line((" " * gap, palette.PLAIN))
    return [a.append_text(space).append_text(b) for a, b in zip(left, right, strict=True)]


def apportion(amounts: Sequence[float], width: int) -> list[int]:
    """Cells in proportion to amounts: they sum to `width`, and what is not zero gets one while there is room.

    Largest remainders; ties go to the earlier.
    """
    whole = sum(amounts)
    if whole <= 0 or width <= 0:
        return [0] * len(amounts)
    exact = [amount * width / whole for amount in amounts]
    cells = [int(x) if x >= 1 else int(x > 0) for x in exact]
    order = sorted(range(len(cells)), key=lambda i: (cells[i] - exact[i], i))
    for i in order[: max(0, width - sum(cells))]:
        cells[i] += 1
    while sum(cells) > width:
        cells[max(range(len(cells)), key=lambda i: (cells[i], -i))] -= 1
    return cells


def bar(share: float, width: int, done: Style, rest: Style) -> Text:
    """A progress bar: heavy where done, thin where not, with half cells between."""
    halves = min(max(int(share * width * 2 + 1e-9), 0), width * 2)
    full, half = divmod(halves, 2)
    return line(("━" * full + "╸" * half, done), ("─" * (width - full - half), rest))
