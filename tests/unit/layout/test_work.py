"""Which steps may divide their rows over the ranks between layers."""

import pytest

from splash.layout.layouts import LAYOUTS, assigned
from splash.layout.rows import Method
from splash.layout.work import DecodeRows, PromptRows, Work, may_scatter

RANKS = 4


def decodes(name: str, rows: int = RANKS) -> DecodeRows:
    return DecodeRows(assigned(LAYOUTS[name], 0), rows, 100 * rows, 100 * rows)


def chunk(name: str, method: Method) -> PromptRows:
    return PromptRows(assigned(LAYOUTS[name], 0), method, 64, RANKS)


@pytest.mark.parametrize(
    ("work", "may"),
    [
        (Work((decodes("dp"),)), True),
        (Work((decodes("dp"),), (chunk("cp", Method.GATHER), chunk("dp", Method.LOCAL))), True),
        (Work((decodes("cp"),)), False),  # every rank computes the queries of all rows
        (Work((decodes("dp"),), (chunk("cp", Method.EXCHANGE),)), False),
        (Work((decodes("dp"), decodes("dop"))), False),
        (Work((decodes("tp"),)), False),
        (Work((decodes("dp", RANKS - 1),)), False),
    ],
)
def test_rows_are_divided_where_one_rank_computes_each_of_them(work: Work, may: bool) -> None:
    """Red when a step is divided in which some layer needs all rows on all ranks (DESIGN §2)."""
    assert may_scatter(work, RANKS) == may
