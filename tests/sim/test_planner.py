"""Plans: maps against single steps, room against placed pages, remedies against what they promise."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from splash.core.errors import CapacityError
from splash.layout.holders import holders
from splash.layout.layouts import CP, DCP, DOP, DP, LAYOUTS, TP, Layout, assigned
from splash.layout.work import DecodeRows, PromptRows, Work
from splash.sched.batch import RowBytes, chunk_method
from splash.sim.deployment import deploy, memory_of
from splash.sim.fitting import possible_ranks, remedies
from splash.sim.planner import Cell, Plan, contexts
from splash.sim.presets import choose

MODELS = ("deepseek-v3.2", "glm-5.3-flash", "qwen3-235b", "glm-4.7-flash")


def plan_of(model: str, hw: str | None = None, **settings: object) -> Plan:
    choice = choose(model, hw)
    return Plan(
        choice.model.name,
        choice.model.spec,
        choice.profile,
        replace(choice.settings, **settings),  # type: ignore[arg-type]
    )


@pytest.fixture(scope="module", params=MODELS)
def plan(request: pytest.FixtureRequest) -> Plan:
    return plan_of(request.param)


# ---- maps


def one_by_one(plan: Plan, layout: Layout, cell: Cell, *, decode: bool) -> float:
    """The step of a cell composed request by request, priced alone."""
    ranks, keeps = plan.settings.ranks, plan.cost.keeps
    places = [assigned(layout, n % ranks if layout is not TP else 0) for n in range(cell.batch)]
    if decode:
        seen = min(float(cell.context), keeps)
        rows = tuple(DecodeRows(at, 1, float(cell.context), seen) for at in places)
        return plan.cost.step_s(Work(rows, sampled=cell.batch))
    row = RowBytes.of(plan.spec)
    chunks = tuple(
        PromptRows(at, chunk_method(at, cell.context, cell.chunk, row, ranks), cell.context, cell.chunk)
        for at in places
    )
    return plan.cost.step_s(Work(prompts=chunks))


def test_a_map_is_what_single_steps_cost(plan: Plan) -> None:
    """Red when a cell's requests are spread otherwise than one by one, or contexts priced together get mixed up."""
    chosen = random.Random(3)
    for each in plan.maps:
        cells = [cell for row in each.cells for cell in row]
        for cell in chosen.sample(cells, 6):
            alone = {
                name: one_by_one(plan, layout, cell, decode=each.phase == "decode")
                for name, layout in LAYOUTS.items()
            }
            assert cell.seconds == pytest.approx(alone, rel=1e-9)
            assert cell.fastest == min(alone, key=alone.__getitem__)


def test_the_best_has_room_and_leads_those_that_have(plan: Plan) -> None:
    """Red when a layout is proposed that cannot hold the cell, or the lead is that over one that cannot."""
    cells = [cell for each in plan.maps for row in each.cells for cell in row]
    assert any(cell.best is None for cell in cells)
    for cell in cells:
        times = sorted(cell.seconds[name] for name in cell.holding)
        assert (cell.best is None) == (not times)
        if cell.best is not None:
            assert cell.best in cell.holding
            assert cell.seconds[cell.best] == times[0]
        if len(times) > 1:
            assert cell.lead == pytest.approx(times[1] / times[0] - 1)
        else:
            assert cell.lead is None


def test_maps_reach_the_models_longest_context(plan: Plan) -> None:
    """Red when the last column is beyond the model, or far below what it knows."""
    columns = plan.decode_map().columns
    assert columns[-1] == plan.spec.max_position
    assert list(columns) == sorted(set(columns))
    assert contexts(4096) == (1024, 4096)
    assert contexts(300) == (300,)


# ---- room


def placed(plan: Plan, layout: Layout, requests: int, tokens: int) -> bool:
    """Whether every page of every request finds room on its rank, as `holders` says."""
    memory, topo = plan.memory, plan.topo
    pages: Counter[int] = Counter()
    blocks = -(-tokens // memory.block_size)
    first = 0
    for request in range(requests):
        at = assigned(layout, (first if layout in (CP, DCP) else request) % topo.ranks)
        first += blocks  # stripes go on where the last one ended
        for block in range(blocks):
            for group in range(topo.groups):
                pages.update(holders(at, block, group, topo))
    states = requests * memory.state_bytes
    return all(pages[rank] * memory.page_bytes + states <= memory.free(layout) for rank in range(topo.ranks))


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=str)
@pytest.mark.parametrize("model", ["glm-5.3-flash", "qwen3-235b"])
def test_room_is_that_of_placed_pages(model: str, layout: Layout) -> None:
    """Red when requests or blocks are divided as if they could be cut, or a state or a KV group is forgotten."""
    roomy = plan_of(model)
    weights = roomy.memory.weight_bytes(layout) + roomy.memory.reserve
    for pages in (30, 64, 130):
        plan = with_device(roomy, int((weights + pages * roomy.memory.page_bytes) / roomy.memory.fraction))
        for tokens in (1, 64, 1000, 3000):
            most = plan.memory.most_requests(layout, plan.topo, tokens, 40)
            held = [n for n in range(1, 41) if placed(plan, layout, n, tokens)]
            assert most == max(held, default=0)
        longest = plan.memory.longest_request(layout, plan.topo)
        assert longest == 0 or placed(plan, layout, 1, longest)
        assert not placed(plan, layout, 1, longest + 1)


def with_device(plan: Plan, num_bytes: int) -> Plan:
    """On devices of that many bytes."""
    memory = plan.profile.memory
    capacity = replace(memory.capacity, value=float(num_bytes))
    return replace(plan, profile=replace(plan.profile, memory=replace(memory, capacity=capacity)))


def test_ranks_of_one_machine_divide_its_memory() -> None:
    """Red when each rank of a CPU has all of the machine, or each device of a node a part of one."""
    one, two = (plan_of("glm-4.7-flash", "cpu", ranks=ranks).memory.device for ranks in (1, 2))
    assert two == one // 2
    assert (
        plan_of("glm-4.7-flash", "h200", ranks=1).memory.device
        == plan_of("glm-4.7-flash", "h200").memory.device
    )


# ---- remedies


@pytest.mark.parametrize(
    ("model", "hw", "settings"),
    [
        ("deepseek-v3.2", "bw1000", {}),
        ("deepseek-v3.2", "h200", {"ranks": 4}),
        ("llama-3.1-405b", "h200", {"weights": "bfloat16"}),
        ("glm-5.3-flash", "bw1000", {"memory_fraction": 0.55}),
    ],
)
def test_each_remedy_suffices_and_less_does_not(model: str, hw: str, settings: dict[str, object]) -> None:
    """Red when a proposal does not make it fit, or a smaller change of the same kind would have."""
    plan = plan_of(model, hw, **settings)
    assert not plan.fits
    assert plan.lacking > 0
    found = plan.remedies
    assert (found.ranks, found.memory_fraction, found.weights) != (None, None, None)
    if found.ranks is not None:
        assert plan_of(model, hw, **{**settings, "ranks": found.ranks}).fits
        fewer = [
            n for n in possible_ranks(plan.spec, plan.profile, found.ranks - 1) if n > plan.settings.ranks
        ]
        assert not any(plan_of(model, hw, **{**settings, "ranks": n}).fits for n in fewer)
    if found.memory_fraction is not None:
        assert plan_of(model, hw, **{**settings, "memory_fraction": found.memory_fraction}).fits
        less = found.memory_fraction - 0.01
        assert not plan_of(model, hw, **{**settings, "memory_fraction": less}).fits
    if found.weights is not None:
        assert plan_of(model, hw, **{**settings, "weights": found.weights}).fits


def test_what_is_lacking_is_what_would_do() -> None:
    """Red when the plan lacks other bytes than the deployment that it is about."""
    plan = plan_of("deepseek-v3.2", "h200", ranks=4)

    def deploy_with(more: int) -> None:
        capacity = replace(plan.profile.memory.capacity, value=plan.memory.device + plan.lacking / 0.9 + more)
        profile = replace(plan.profile, memory=replace(plan.profile.memory, capacity=capacity))
        deploy(plan.model, plan.spec, profile, plan.settings)

    deploy_with(2)
    with pytest.raises(CapacityError, match="does not fit"):
        deploy_with(-4)


@pytest.mark.parametrize(
    ("model", "settings", "option", "changed"),
    [
        ("llama-3.1-405b", {"weights": "bfloat16"}, "--dtype fp8_block", {"weights": "fp8_block"}),
        ("deepseek-v3.2", {"ranks": 4}, "--ranks 8", {"ranks": 8}),
    ],
)
def test_a_deployment_that_does_not_fit_proposes_one_that_does(
    model: str, settings: dict[str, object], option: str, changed: dict[str, object]
) -> None:
    """Red when what the simulator proposes, who needs a slot for every shard, does not deploy either."""
    plan = plan_of(model, **settings)
    assert not plan.fits
    with pytest.raises(CapacityError, match=rf"every head shard .* GiB too much .*{option}"):
        deploy(plan.model, plan.spec, plan.profile, plan.settings)
    better = plan_of(model, **{**settings, **changed})
    deploy(better.model, better.spec, better.profile, better.settings)


def test_what_the_demand_is_made_of_is_said() -> None:
    """Red when a reader cannot tell that some layouts would have room, or thinks that they do."""
    for model, settings, said in (
        ("llama-3.1-405b", {"weights": "bfloat16"},
         r"with the own shard alone they take 94\.5 GiB and would leave 31\.9 GiB for KV in tp, dop, dcp, but a pool"),
        ("deepseek-v3.2", {"ranks": 4}, "even with the own shard alone they take"),
    ):  # fmt: skip
        plan = plan_of(model, **settings)
        with pytest.raises(CapacityError, match=said):
            deploy(plan.model, plan.spec, plan.profile, plan.settings)


def test_remedies_of_what_cannot_be_helped_are_none() -> None:
    """Red when something is proposed that does not do."""
    plan = plan_of("glm-5.3")
    found = remedies(
        plan.settings,
        lambda settings: memory_of(plan.spec, plan.profile, settings),
        lambda settings, memory: 1,
        ranks=(16, 32),
    )
    assert (found.ranks, found.memory_fraction, found.weights) == (None, None, None)
    assert str(found) == "no single option"


@pytest.mark.parametrize(
    ("model", "fits"), [("llama-3.1-405b", {TP, DOP, DCP}), ("glm-5.3", set(LAYOUTS.values()))]
)
def test_layouts_fit_by_their_own_weights(model: str, fits: set[Layout]) -> None:
    """Red when a layout that needs every shard is said to fit because the own one does."""
    plan = plan_of(model, "h200", weights="bfloat16" if model.startswith("llama") else "fp8_block")
    assert plan.fits is (fits == set(LAYOUTS.values()))
    assert {layout for name, layout in LAYOUTS.items() if plan.layouts[name].fits} == fits
    if DP not in fits:
        assert all("dp" not in cell.holding for row in plan.decode_map().cells for cell in row)
