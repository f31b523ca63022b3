"""Who contributes to a row's attention output before the closing all-reduce."""

from __future__ import annotations

from splash.layout.layouts import CP, DP, Assignment, Layout
from splash.layout.rows import Method


def writers(
    at: Assignment, method: Method, head: int, offset: int, count: int, *, ranks: int, num_heads: int
) -> int:
    """The one rank that writes (row, head) into the zeroed [N, d] that the all-reduce closes.

    `offset` of `count` is the row's place within its span (it matters for the gathered form of cp,
    where rows are dealt out to ranks and each computes all heads). Over all ranks this partitions
    (row, head), so nothing is counted twice and nothing is forgotten.
    """
    layout: Layout = at.layout
    if layout is DP:
        return at.home
    if layout is CP and method is Method.GATHER:
        return row_rank(offset, count, ranks)
    return head * ranks // num_heads


def row_rank(offset: int, count: int, ranks: int) -> int:
    """The rank that computes row `offset` of a gathered cp span of `count` rows."""
    return next(r for r in range(ranks) if offset < row_share(r, count, ranks).stop)


def row_share(rank: int, count: int, ranks: int) -> range:
    """The rows of a gathered cp span that `rank` computes: contiguous, sizes differ by at most one."""
    return range(count * rank // ranks, count * (rank + 1) // ranks)
