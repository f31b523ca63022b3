"""A span: the rows that one request has in one step, with all that decides their dataflow."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from splash.layout.layouts import SECTION_ORDER, Assignment


class Method(Enum):
    """How rows meet the history that lies on other ranks; chosen in the plan (DESIGN §2)."""

    LOCAL = "local"
    """Nothing travels: tp and dp."""
    EXCHANGE = "exchange"
    """The queries travel to the KV and the outputs travel back."""
    GATHER = "gather"
    """The history's KV travels, in bounded chunks merged by LSE."""


class Span(NamedTuple):
    """Rows [start, start + count) of a request: positions in the sequence, one row a token."""

    request: int
    start: int
    count: int  # type: ignore[assignment]  # not a tuple's
    present: Assignment
    next: Assignment | None
    """Set while a transition is staged: appends go to holders(present) and holders(next)."""
    method: Method
    decode: bool

    @property
    def end(self) -> int:
        return self.start + self.count


_SECTION = {layout.name: i for i, layout in enumerate(SECTION_ORDER)}


def section_key_of(at: Assignment, decode: bool, request: int) -> tuple[int, bool, int, int]:
    """Sort key of the global row order: section, prefill before decode, owner, request id."""
    return _SECTION[at.layout.name], decode, at.home, request


def section_key(span: Span) -> tuple[int, bool, int, int]:
    """`section_key_of` of a span."""
    return section_key_of(span.present, span.decode, span.request)


def ordered(spans: Iterable[Span]) -> list[Span]:
    """Spans in the order in which every rank lays out its rows."""
    return sorted(spans, key=section_key)
