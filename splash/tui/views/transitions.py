"""What is moving: the open switch, each move with its progress, weights, and how the last switch went."""

from __future__ import annotations

from rich.style import Style
from rich.text import Text

from splash.core.events import PolicyAsked, SwitchDone, TargetChanged
from splash.tui import palette
from splash.tui.moves import Move
from splash.tui.state import Snapshot
from splash.tui.texts import list_links, old_and_new, outcome_of, show_predicted
from splash.tui.units import clean, plural, show_bytes, show_count, show_share
from splash.tui.views.lines import bar, fold, line, spread

INDENT = 8
"""Of what goes on in another line."""
DETAILS = ((130, 38), (96, 23), (0, 0))
"""From which width on a move also says between which ranks its bytes travel, and the cells for that."""


def transitions(view: Snapshot, width: int, height: int) -> list[Text]:
    """The switch on top, the last outcome at the bottom, moves and weights between, so that nothing jumps. Where lines
    between are blank, either goes on there that is longer than a line."""
    if height < 2:
        return _switch(view, width, at_most=1)
    moving = [_move(move, width) for move in view.moves]
    if view.weights is not None:
        moving.insert(min(1, len(moving)), _weights(view, width))
    room = height - 2
    if len(moving) > room:
        hidden = len(moving) - max(room - 1, 0)
        moving = [*moving[: max(room - 1, 0)], line((f" and {hidden} more", palette.LABEL))][:room]
    head = _switch(view, width, at_most=1 + room - len(moving))
    last = fold(_last(view), width, indent=INDENT, at_most=2 + room - len(moving) - len(head))
    blanks = [line() for _ in range(height - len(head) - len(moving) - len(last))]
    return [*head, *moving, *blanks, *last]


def arrow(old: str, new: str) -> Text:
    """`T tp → D dp`, each in its colour."""
    return line(
        (f"{palette.letter(old)} {old}", palette.ink(old)),
        (" → ", palette.LABEL),
        (f"{palette.letter(new)} {new}", palette.ink(new)),
    )


def change(event: TargetChanged | SwitchDone) -> Text:
    """As `arrow`, with the whole names of both targets."""
    old, new = old_and_new(event)
    return line(
        (f"{palette.letter(event.old)} {old}", palette.ink(event.old)),
        (" → ", palette.LABEL),
        (f"{palette.letter(event.new)} {new}", palette.ink(event.new)),
    )


def _switch(view: Snapshot, width: int, *, at_most: int) -> list[Text]:
    switch = view.switch
    if switch is None:
        return fold(_steady(view), width, indent=INDENT, at_most=at_most)
    left = line((" switch ", palette.LABEL)).append_text(change(switch))
    left.append(f"  {clean(switch.reason)}", palette.PLAIN)
    if switch.predicted and view.asked is None:
        left.append(f"  predicted {show_predicted(switch.predicted)}", palette.LABEL)
    right = line(
        (f"  {show_count(view.flips_left)}", palette.STRONG),
        (" flip left " if view.flips_left == 1 else " flips left ", palette.LABEL),
    )
    first, *more = fold(left, width, indent=INDENT, first=max(width - right.cell_len, 1), at_most=at_most)
    return [spread(first, right, width), *more]


def _steady(view: Snapshot) -> Text:
    away = view.away
    there = view.num_running and not away
    decided = view.decided
    target = view.target, view.striped_from
    if there and decided is not None and (decided.chosen, decided.chosen_striped_from) == target:
        return _since(view, decided)
    text = line((" no switch is open", palette.LABEL))
    if there:
        text.append(f", {_all_running(view)} in {view.whole_target}", palette.LABEL)
    elif away:
        text.append(
            f", {show_count(away)} of {plural(view.num_running, 'request')} not in {view.whole_target}"
        )
    return text


def _all_running(view: Snapshot) -> str:
    """`all 14 running requests`, `the running request`."""
    return "the running request" if view.num_running == 1 else f"all {view.num_running:,} running requests"


def _since(view: Snapshot, decided: PolicyAsked) -> Text:
    """Where all requests are, and why."""
    text = line((f" {_all_running(view)} in ", palette.LABEL))
    text.append(view.whole_target, palette.ink(view.target))
    text.append(f" since step {show_count(decided.step)}: ", palette.LABEL)
    return text.append(clean(decided.reason), palette.PLAIN)


def _move(move: Move, width: int) -> Text:
    """`T tp → O dop  14 requests  rank 0 → 1  ━━━━━╸────  54 %  3.2 of 6.0 MiB  9 flips left`"""
    left = line((" ", palette.PLAIN)).append_text(arrow(move.old, move.new))
    left.append(" " * max(1, 16 - left.cell_len))
    left.append(f"{plural(move.requests, 'request'):<13}", palette.PLAIN)
    cells = _detail_cells(width)
    if cells:
        links = list_links(move.links, with_bytes=cells > 30)
        left.append(f"{links if move.num_bytes else 'nothing to copy':<{cells}}", palette.LABEL)
    left_word = "flip" if move.flips_left == 1 else "flips"
    flips = f"{show_count(move.flips_left)} {left_word} left" if move.flips_left else "flipped"
    return _progress(
        left, move.share, palette.ink(move.new), palette.ink(move.old, False),
        _of(move.arrived, move.num_bytes), flips, width,
    )  # fmt: skip


def _weights(view: Snapshot, width: int) -> Text:
    moving = view.weights
    assert moving is not None
    left = line((" weights", palette.slot_ink("own")))
    left.append(" " * max(1, 16 - left.cell_len))
    busy = {
        word: [str(number) for number, rank in enumerate(view.ranks) if word in rank.slots]
        for word in ("filling", "draining")
    }
    into = busy["filling"] or busy["draining"]
    left.append(f"{_ranks(into):<13}", palette.PLAIN)
    out = f"{plural(moving.evacuated_pages, 'page')} out" if moving.evacuated_pages else ""
    cells = _detail_cells(width)
    if cells:
        left.append(f"{_weights_state(view):<{cells}}", palette.LABEL)
    ended = "given up" if moving.left else "in place"
    state = ended if moving.is_done else out or "to come"
    return _progress(
        left, moving.share, palette.slot_ink("own"), palette.FAINT,
        _of(moving.arrived, moving.num_bytes), state, width,
    )  # fmt: skip


def _detail_cells(width: int) -> int:
    return next(cells for least, cells in DETAILS if width >= least)


def _weights_state(view: Snapshot) -> str:
    if view.weights is None or view.weights.is_done:
        return "shards are in place" if view.weights is None or not view.weights.left else "given up"
    is_filling = any("filling" in rank.slots for rank in view.ranks)
    return "shards arrive" if is_filling else "KV makes room"


def _ranks(numbers: list[str]) -> str:
    if not numbers:
        return ""
    if len(numbers) > 3:
        return f"{len(numbers)} ranks"
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}"


def _of(arrived: int, whole: int) -> str:
    return f"{show_bytes(arrived)} of {show_bytes(whole)}" if whole else "0 B"


def _progress(left: Text, share: float, done: Style, rest: Style, amount: str, tail: str, width: int) -> Text:
    right = line(
        (f" {show_share(share)}", palette.STRONG),
        (f"  {amount:>20}", palette.PLAIN),
        (f"  {tail:>13} ", palette.LABEL),
    )
    room = width - left.cell_len - right.cell_len
    return left.append_text(bar(share, max(room, 0), done, rest)).append_text(right)


def _last(view: Snapshot) -> Text:
    if view.refused is not None:
        refused = view.refused
        text = line(
            (" refused ", palette.WARNING),
            (f"{clean(refused.target)}: {clean(refused.reason)}", palette.PLAIN),
        )
        return text
    last = view.last_switch
    if last is None:
        return line((" last   none yet", palette.FAINT))
    text = line((" last   ", palette.LABEL)).append_text(change(last))
    return text.append(f"  {last.outcome}: {outcome_of(last)}", palette.LABEL)
