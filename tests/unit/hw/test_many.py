"""Steps tallied and priced together against each of them alone, which is the slow twin."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splash.hw.cost import CostModel
from splash.hw.load import load_profile
from splash.hw.precision import Precision
from splash.layout.layouts import LAYOUTS, Assignment, Placement, assigned
from splash.layout.rows import Method
from splash.layout.work import DecodeRows, PromptRows, Work
from splash.spec.known import known_model
from splash.spec.storage import kv_storage, weight_storage

RANKS = 8
MODELS = ("deepseek-v3", "deepseek-v3.2", "llama-3.1-405b", "glm-5.3-flash")


@cache
def model(name: str, *, capable: bool = True) -> CostModel:
    """`capable`: of a port that scatters rows and attends un-absorbed."""
    spec = known_model(name)
    return CostModel(
        spec=spec,
        profile=load_profile("h200"),
        ranks=RANKS,
        precision=Precision.of(spec, weight_storage("fp8_block"), kv_storage("bfloat16")),
        max_rows=20_000,
        scattered=capable,
        unabsorbed=capable,
    )


def places(*, layouts: tuple[str, ...] = tuple(LAYOUTS)) -> st.SearchStrategy[Assignment]:
    def at(name: str, home: int) -> Assignment:
        layout = LAYOUTS[name]
        return assigned(layout, 0 if layout.placement is Placement.BY_HEAD else home)

    return st.builds(at, st.sampled_from(layouts), st.integers(0, RANKS - 1))


@st.composite
def decode_rows(draw: st.DrawFn) -> DecodeRows:
    rows = draw(st.integers(1, 100))
    context = rows * draw(st.integers(1, 9000))
    return DecodeRows(draw(places()), rows, context, context * draw(st.sampled_from((1.0, 0.5))))


@st.composite
def prompt_rows(draw: st.DrawFn) -> PromptRows:
    at = draw(places())
    local = at.layout.name in ("tp", "dp")
    method = Method.LOCAL if local else draw(st.sampled_from((Method.EXCHANGE, Method.GATHER)))
    return PromptRows(at, method, draw(st.sampled_from((0, 700, 50_000))), draw(st.integers(1, 900)))


@st.composite
def many_works(draw: st.DrawFn) -> list[Work]:
    """Several steps for each of a few decodes and chunks, which some of them share."""
    decodes = draw(st.lists(st.lists(decode_rows(), max_size=9).map(tuple), min_size=1, max_size=3))
    prompts = draw(st.lists(st.lists(prompt_rows(), max_size=9).map(tuple), min_size=1, max_size=3))
    pairs = draw(
        st.lists(st.tuples(st.sampled_from(decodes), st.sampled_from(prompts)), min_size=1, max_size=6)
    )
    return [Work(some, chunks, sum(group.rows for group in some)) for some, chunks in pairs]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("capable", [True, False])
@settings(max_examples=60)
@given(works=many_works())
def test_many_steps_cost_what_each_of_them_costs(name: str, capable: bool, works: list[Work]) -> None:
    """Red when any count of the columns differs from that of one step, or one step's rows come to another's: to the
    last bit, so that a policy's answer does not depend on what it asks together."""
    costs = model(name, capable=capable)
    assert costs.steps_s(works) == [costs.step_s(work) for work in works]


def test_no_steps_have_no_prices() -> None:
    """Red when a policy that finds no target with room for what runs fails instead of saying so."""
    assert model("deepseek-v3.2").steps_s([]) == []


def test_the_twin_can_tell_steps_apart() -> None:
    """Red when steps that differ in one thing alone are given one price."""
    at = assigned(LAYOUTS["dop"], 3)
    decodes = (DecodeRows(at, 5, 20_000, 9_000),)
    works = [
        Work(decodes, (), 5),
        Work(decodes, (PromptRows(at, Method.EXCHANGE, 700, 64),), 5),
        Work(decodes, (PromptRows(at, Method.GATHER, 700, 64),), 5),
        Work(decodes, (PromptRows(at, Method.GATHER, 9_000, 64),), 5),
        Work((DecodeRows(at, 5, 40_000, 9_000),), (), 5),
    ]
    assert len(set(model("deepseek-v3.2").steps_s(works))) == len(works)
