"""What a plan looks like: cells of a map, colours in a terminal, narrow terminals."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from splash.cli.plan_table import CELL, NARROW, _cell_text, _legend, show_plan, show_tokens
from splash.core.config import DEMO
from splash.sim.planner import Cell, Plan
from splash.sim.presets import choose

TIMES = {"tp": 0.01234, "dp": 0.0117, "cp": 0.5, "dop": 0.0124, "dcp": 2.0}
ALL = frozenset(TIMES)


def cell(holding: frozenset[str], **times: float) -> Cell:
    return Cell(8, 1, 1024, {**TIMES, **times}, holding)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (cell(ALL), "dp   11.7  +5%"),
        (cell(ALL - {"dp"}), "tp*  12.3    ="),
        (cell(frozenset()), "dp!  11.7"),
        (cell(frozenset({"dcp"})), "dcp* 2000"),
        (cell(ALL, dp=0.005), "dp   5.00 ×2.5"),
        (cell(frozenset({"cp", "dcp"}), cp=12.5), "dcp* 2000 ×6.2"),
        (cell(frozenset({"cp"}), cp=12.5), "cp* 12.5s"),
    ],
)
def test_a_cell_says_layout_time_lead_and_room(given: Cell, text: str) -> None:
    """Red when a mark, a unit or the lead is lost, or a cell outgrows its column."""
    assert _cell_text(given, wide=True).rstrip() == text
    assert len(_cell_text(given, wide=True)) <= CELL
    assert len(_cell_text(given, wide=False)) <= NARROW


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        (0, "0"),
        (300, "300"),
        (1024, "1K"),
        (163_840, "160K"),
        (202_752, "198K"),
        (1 << 20, "1M"),
        (5000, "5000"),
    ],
)
def test_tokens_are_said_as_people_say_them(tokens: int, text: str) -> None:
    """Red when a context is called by another length."""
    assert show_tokens(tokens) == text


def shown(plan: Plan, *, width: int, terminal: bool) -> str:
    out = io.StringIO()
    show_plan(
        Console(
            file=out, width=width, force_terminal=terminal, color_system="truecolor" if terminal else None
        ),
        plan,
    )
    return out.getvalue()


def test_terminals_get_colours_and_no_line_too_long() -> None:
    """Red when cells are plain in a terminal, or a narrow one wraps the maps."""
    choice = choose("glm-5.3", None)
    plan = Plan(choice.model.name, choice.model.spec, choice.profile, choice.settings)
    assert "\x1b[1;38;2" in shown(plan, width=100, terminal=True)
    for width in (80, 100, 140):
        assert max(map(len, shown(plan, width=width, terminal=False).splitlines())) <= width


def test_the_legend_follows_what_is_shown() -> None:
    """Red when it explains a lead or a mark that no cell has, or 80 columns have no room for the leads of five."""
    for model, width, leads in [
        ("deepseek-v3.2", 80, True),
        ("deepseek-v3.2", 79, False),
        ("glm-5.3", 80, False),
    ]:
        choice = choose(model, None)
        plan = Plan(choice.model.name, choice.model.spec, choice.profile, choice.settings)
        text = " ".join(shown(plan, width=width, terminal=False).split())
        assert bool(re.search(r" \+\d+% ", text)) == leads
        assert ("how much longer the second takes" in text) == leads
        assert "!: no layout has room for the KV" in text
    few = replace(plan.maps[0], rows=(1,), cells=((cell(ALL, dp=0.01),),))
    assert _legend([few], wide=False) == ["Cells: layout, time of a step (ms; s: seconds)."]


def test_a_small_model_is_shown_in_a_small_unit() -> None:
    """Red when the memory of a model of some megabytes is a column of zeros, or the room beside it one of MiB."""
    choice = choose(str(DEMO), "h200")
    plan = Plan(choice.model.name, choice.model.spec, choice.profile, choice.settings)
    text = shown(plan, width=100, terminal=False)
    assert text.startswith("demo on ")
    assert "Memory of a rank: 126 GiB usable, 90% of 140 GiB" in text
    own = plan.layouts["tp"].weight_bytes / 2**20
    assert re.search(rf"^ tp +{own:.1f} MiB +126 GiB ", text, re.M)


def test_layouts_that_do_not_fit_are_said_not_to() -> None:
    """Red when dp is shown with tokens, or tp's are not shown, where the own shard alone would fit."""
    choice = choose("llama-3.1-405b", None)
    settings = replace(choice.settings, weights="bfloat16")
    text = shown(Plan("llama", choice.model.spec, choice.profile, settings), width=100, terminal=False)
    assert text.count("does not fit") == 2 + 1
    assert "a pool has a slot for every head shard, whatever the layout" in text


def test_a_shared_memory_is_said_to_be_shared() -> None:
    """Red when a rank of a CPU seems to have memory of its own, or a device of a node a share."""
    titles = []
    for hardware in ("cpu", "h200"):
        choice = choose("glm-4.7-flash", hardware)
        settings = replace(choice.settings, ranks=2)
        text = shown(Plan("flash", choice.model.spec, choice.profile, settings), width=100, terminal=False)
        titles += [line for line in text.splitlines() if line.startswith("Memory of a rank")]
    assert "2 ranks share" in titles[0]
    assert "share" not in titles[1]
