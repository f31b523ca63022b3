"""The view without a terminal: a line for each thing that happens, and now and then a status line."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType

from rich.console import Console

from splash.core.events import Event, RunFinished
from splash.tui import palette
from splash.tui.state import LOG_WINDOW_S, RankState, Snapshot, ViewState
from splash.tui.texts import describe, show_change
from splash.tui.units import clean, plural, show_bytes, show_clock, show_count, show_rate, show_share

LOG_SIZE = 512


class PlainLines:
    """Writes whole lines without escape codes, flushed, in the order of event times.

    Like events of one second make one line, under the time of the first; `interval_s` lie between status lines. Where
    nobody reads any more `sink` raises BrokenPipeError, once; nothing is written after that.
    """

    def __init__(self, console: Console, *, interval_s: float = 1.0) -> None:
        self._console = console
        self._interval_s = interval_s
        self._state = ViewState(log_size=LOG_SIZE, speed=interval_s, log_window_s=LOG_WINDOW_S)
        self._next_status_t = interval_s
        self._num_written = 0
        self._is_broken = False

    def sink(self, event: Event) -> None:
        """Called for each event, in order."""
        self._state.fold(event)
        is_due = event.t >= self._next_status_t
        if is_due or isinstance(event, RunFinished):
            self._state.log.close()
        self._write_closed()
        if is_due or isinstance(event, RunFinished):
            for line in status_lines(self._state.snapshot()):
                self._write(line)
            self._next_status_t = (event.t // self._interval_s + 1) * self._interval_s

    def __enter__(self) -> PlainLines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._state.log.close()
        with suppress(BrokenPipeError):
            self._write_closed()

    def _write_closed(self) -> None:
        for entry in self._state.log.closed_since(self._num_written):
            self._write(f"{show_clock(entry.t):>8}  {describe(entry)}")
            self._num_written = entry.seq + 1

    def _write(self, text: str) -> None:
        if self._is_broken:
            return
        try:
            self._console.file.write(text + "\n")
            self._console.file.flush()
        except BrokenPipeError:
            self._is_broken = True
            raise


def status_lines(view: Snapshot) -> list[str]:
    """The figures of a frame in one line, and in a second one what is moving, if anything is."""
    figures = [
        f"step {show_count(view.step)}",
        f"target {view.whole_target or 'N/A'}",
        f"{show_rate(view.tokens_per_s)} tok/s",
        _requests(view),
        *_ranks(view.ranks),
    ]
    moving = _moving(view)
    return [f"{show_clock(view.t):>8}  {text}" for text in (" | ".join(figures), moving) if text]


def _moving(view: Snapshot) -> str:
    """The switch that is open, and how far KV and weights are that move; empty if nothing does."""
    parts = []
    moves = [move for move in view.moves if move.flips_left and move.num_bytes]
    if moves:
        arrived, whole = sum(move.arrived for move in moves), sum(move.num_bytes for move in moves)
        parts.append(f"KV {_share(arrived, whole)}")
    if view.weights is not None and not view.weights.is_done:
        parts.append(f"weights {_share(view.weights.arrived, view.weights.num_bytes)}")
    moved = ", ".join(parts)
    if view.switch is None:
        return f"moving {moved}" if moved else ""
    switch = f"switch {show_change(view.switch)}, {plural(view.flips_left, 'flip')} left"
    return f"{switch}, {moved}" if moved else switch


def _share(arrived: int, whole: int) -> str:
    """`45 % of 96.0 KiB`."""
    return f"{show_share(arrived / whole).strip()} of {show_bytes(whole)}" if whole else "0 B"


def _requests(view: Snapshot) -> str:
    """`running 24 (tp 12, dop 12), waiting 3, done 9`, or `running 24 in tp, done 9`."""
    names = palette.order_of(view.running)
    running = f"running {show_count(view.num_running)}"
    if len(names) == 1:
        running += f" in {names[0]}"
    elif names:
        running += f" ({', '.join(f'{name} {show_count(view.running[name])}' for name in names)})"
    waiting = f", waiting {show_count(view.waiting)}" if view.waiting else ""
    return f"{running}{waiting}, done {show_count(view.totals.finished)}"


def _ranks(ranks: Sequence[RankState]) -> list[str]:
    """`slots 1 own 7 kv, pages 62–64 % free, rows 14–37`: the least and the most of any rank."""
    if not ranks:
        return []
    wholes = [sum(rank.pages.values()) for rank in ranks]
    free = "N/A"
    if all(wholes):
        percents = [
            rank.pages.get("free", 0) * 100 // whole for rank, whole in zip(ranks, wholes, strict=True)
        ]
        free = f"{_span(percents)} % free"
    words = dict.fromkeys(word for rank in ranks for word in sorted(rank.slots, key="own".__ne__))
    slots = [f"{_span([rank.slots.count(word) for rank in ranks])} {clean(word)}" for word in words]
    rows = _span([rank.rows for rank in ranks])
    return [f"slots {' '.join(slots) or 'N/A'}, pages {free}, rows {rows}"]


def _span(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return show_count(low) if low == high else f"{show_count(low)}–{show_count(high)}"
