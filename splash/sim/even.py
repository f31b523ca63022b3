"""Steps of equal requests, spread over the ranks as evenly as whole requests can be: what plans are made of."""

from __future__ import annotations

from dataclasses import dataclass

from splash.layout.layouts import Assignment, Layout, Placement, assigned
from splash.layout.work import DecodeRows, PromptRows, Tokens, Work
from splash.sched.batch import RowBytes, chunk_method


@dataclass(frozen=True, slots=True)
class Even:
    """Composes steps for one deployment."""

    ranks: int
    keeps: float
    """Tokens that a row attends to at most; infinite where attention is dense."""
    row_bytes: RowBytes

    def decodes(self, layout: Layout, batch: int, context: Tokens) -> Work:
        """One row of each of `batch` requests that see `context` tokens each, their own included: a number, or a
        float array with one for each of several steps."""
        seen = _at_most(context, self.keeps)
        groups = tuple(
            DecodeRows(at, rows, rows * context, rows * seen) for at, rows in self._places(layout, batch)
        )
        return Work(groups, sampled=batch)

    def chunks(self, layout: Layout, prompts: int, start: int, count: int, *, sampled: int = 0) -> Work:
        """Rows [start, start + count) of each of `prompts` prompts, on owners of their own while there are any."""
        homes = self.ranks if layout.placement is not Placement.BY_HEAD else 1
        places = [assigned(layout, prompt % homes) for prompt in range(prompts)]
        rows = tuple(
            PromptRows(at, chunk_method(at, start, count, self.row_bytes, self.ranks), start, count)
            for at in places
        )
        return Work(prompts=rows, sampled=sampled)

    def _places(self, layout: Layout, batch: int) -> list[tuple[Assignment, int]]:
        """Where `batch` requests are, and how many at each place."""
        if layout.placement is not Placement.OWNER:
            return [(assigned(layout, 0), batch)]  # stripes share the tokens whatever the offset
        rows = [batch // self.ranks + (home < batch % self.ranks) for home in range(self.ranks)]
        return [(assigned(layout, home), n) for home, n in enumerate(rows) if n]


def together(first: Work, second: Work) -> Work:
    """Both in one step."""
    return Work(
        first.decodes + second.decodes, first.prompts + second.prompts, first.sampled + second.sampled
    )


def _at_most(tokens: Tokens, limit: float) -> Tokens:
    """Element by element; `tokens` may be an array, which this module need not know."""
    return tokens - (tokens > limit) * (tokens - limit) if limit < float("inf") else tokens
