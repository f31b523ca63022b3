"""The latest events as lines; a burst of like events within a window is one line that counts them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from splash.core.events import Event


@dataclass(slots=True)
class Entry:
    """One line in the making: its first event, and tallies over all that were merged into it."""

    seq: int
    t: float
    event: Event
    key: tuple[str, ...] = ()
    """What the merged events have in common; empty if it stands alone."""
    count: int = 0
    num_bytes: int = 0
    num_tokens: int = 0
    words: dict[str, int] = field(default_factory=dict)
    """How many by reason, by rank, or whatever the text lists."""
    links: dict[tuple[int, int], int] = field(default_factory=dict)
    steps: tuple[int, int] = (0, 0)
    """The least and the most."""


class EventLog:
    """The latest `size` entries. Entries of one window merge by key; then the window closes for good."""

    def __init__(self, *, size: int = 50, window_s: float = 1.0) -> None:
        self._entries: deque[Entry] = deque(maxlen=size)
        self._window_s = window_s
        self._opened_at = 0.0
        self._open: dict[tuple[str, ...], Entry] = {}
        self._num = 0
        self._closed = 0

    def note(
        self,
        event: Event,
        key: tuple[str, ...] = (),
        *,
        num_bytes: int = 0,
        num_tokens: int = 0,
        word: str = "",
        num_words: int = 1,
        steps: int | None = None,
        links: list[list[int]] | None = None,
    ) -> None:
        """Counts `event` in the open entry of its key. Without a key it stands alone and closes all others."""
        if key:
            self.tick(event.t)
        else:
            self.close()
        entry = self._open.get(key)
        if entry is None:
            entry = self._append(event, key)
        entry.count += 1
        entry.num_bytes += num_bytes
        entry.num_tokens += num_tokens
        if word:
            entry.words[word] = entry.words.get(word, 0) + num_words
        if steps is not None:
            low, high = entry.steps if entry.count > 1 else (steps, steps)
            entry.steps = (min(low, steps), max(high, steps))
        for source, row in enumerate(links or ()):
            for destination, amount in enumerate(row):
                if amount:
                    link = (source, destination)
                    entry.links[link] = entry.links.get(link, 0) + amount

    def tick(self, t: float) -> None:
        """Closes the window if `t` lies beyond it."""
        if self._open and t - self._opened_at >= self._window_s:
            self.close()

    def close(self) -> None:
        self._open.clear()
        self._closed = self._num

    def latest(self, number: int | None = None) -> list[Entry]:
        """Oldest first."""
        entries = list(self._entries)
        return entries if number is None else entries[max(0, len(entries) - number) :]

    def closed_since(self, seq: int) -> Iterator[Entry]:
        """Entries numbered `seq` and up that can grow no more."""
        return (entry for entry in self._entries if seq <= entry.seq < self._closed)

    def _append(self, event: Event, key: tuple[str, ...]) -> Entry:
        entry = Entry(seq=self._num, t=event.t, event=event, key=key)
        self._entries.append(entry)
        self._num += 1
        if not key:
            self._closed = self._num
            return entry
        if not self._open:
            self._opened_at = event.t
        self._open[key] = entry
        return entry
