"""What a step has to compute, as far as its time depends on it: rows by place, and the history they read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from splash.layout.layouts import Assignment, Placement, Projection
from splash.layout.rows import Method

Tokens = Any
"""A number of tokens; or an array of them, one for each of several steps that differ in nothing else."""


class DecodeRows(NamedTuple):
    """One row of each of `rows` requests that are at the same place."""

    at: Assignment
    rows: int
    context: Tokens
    """Tokens that the rows can see, their own included, summed over the rows."""
    selected: Tokens
    """As `context`, but each row counts at most what sparse attention keeps."""


class PromptRows(NamedTuple):
    """A chunk: rows [start, start + count) of one prompt."""

    at: Assignment
    method: Method
    start: int
    count: int  # type: ignore[assignment]  # not a tuple's


class Work(NamedTuple):
    """The rows of one step."""

    decodes: tuple[DecodeRows, ...] = ()
    prompts: tuple[PromptRows, ...] = ()
    sampled: int = 0
    """Rows that are projected onto the vocabulary."""

    @property
    def num_rows(self) -> int:
        return sum(d.rows for d in self.decodes) + sum(p.count for p in self.prompts)

    @property
    def places(self) -> Iterable[Assignment]:
        yield from (d.at for d in self.decodes)
        yield from (p.at for p in self.prompts)


def may_scatter(work: Work, ranks: int) -> bool:
    """Whether the rows may be divided over the ranks between layers: each is computed whole by one rank, by full
    projections and without an exchange, and there are at least as many rows as ranks (DESIGN §2)."""
    return (
        all(at.layout.projection is Projection.FULL for at in work.places)
        and all(group.at.layout.placement is Placement.OWNER for group in work.decodes)
        and all(chunk.method is not Method.EXCHANGE for chunk in work.prompts)
        and work.num_rows >= ranks
    )
