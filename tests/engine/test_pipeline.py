"""The attention pipeline and the rank worker against transformers, with ranks as threads and hand-made plans."""

from __future__ import annotations

import random

import pytest
import torch

from splash.core.params import SamplingParams
from splash.layout.exchange import layer_collectives, rides, route, widths
from splash.layout.layouts import LAYOUTS
from splash.layout.selection import counts_candidates, selecting
from tests.conftest import TinyMaker
from tests.engine.pipeline_kit import assert_as_reference, run, spec_of
from tests.engine.script import GREEDY, Script, at, prompts_of, serve
from tests.engine.switching_kit import tour
from tests.tiny import random_prompt, reference_logits

LAYOUT_NAMES = tuple(LAYOUTS)
PAIRS = [(a, b) for a in LAYOUT_NAMES for b in LAYOUT_NAMES if a != b]

MODELS = [
    ("deepseek_v3", {}, 1),
    ("deepseek_v3", {}, 2),
    ("deepseek_v3", {}, 4),
    ("deepseek_v3", {}, 8),
    ("deepseek_v3_no_q_lora", {}, 2),
    ("glm4_moe_lite", {}, 4),
    ("llama", {"kv_heads": 2}, 1),
    ("llama", {"kv_heads": 2}, 2),
    ("llama", {"kv_heads": 2}, 4),
    ("llama", {"kv_heads": 4}, 4),
    ("llama", {"kv_heads": 8}, 4),
    ("llama", {"kv_heads": 2}, 8),
    ("qwen3_moe", {"kv_heads": 2}, 4),
    ("qwen3_moe", {"kv_heads": 4}, 2),
    ("deepseek_v32", {"layers": 4}, 2),
    ("glm_moe_dsa", {"layers": 4}, 4),
]


@pytest.mark.parametrize("layout", LAYOUT_NAMES)
@pytest.mark.parametrize(
    ("kind", "options", "ranks"), MODELS, ids=lambda x: str(x).translate({ord(c): None for c in "{} '"})
)
def test_a_layout_equals_transformers(
    tiny: TinyMaker, kind: str, options: dict[str, int], ranks: int, layout: str
) -> None:
    """Red when a row class loses or doubles a reduction, a mask or a page: only values show that.

    Prompts of 1, page - 1, page, page + 1 and several chunks; homes are uneven, so some ranks own no row.
    """
    folder = tiny(kind, **options)
    script = Script(spec_of(folder), ranks)
    script.fetch_for(*(at(layout, home) for home in range(ranks)))
    script.step()
    script.step()
    prompts = prompts_of((1, 3, 4, 5, 13, 30))
    for i, prompt in prompts.items():
        script.admit(i, prompt, at(layout, (i * i) % ranks))
    serve(script, prompts, 12)
    assert_as_reference(folder, prompts, run(folder, script))


@pytest.mark.parametrize(
    ("kind", "options", "ranks"), [MODELS[2], MODELS[8], MODELS[12], MODELS[1], *MODELS[14:]]
)
def test_layouts_mix_in_one_step(tiny: TinyMaker, kind: str, options: dict[str, int], ranks: int) -> None:
    """Red when sections disturb each other: rows of all layouts, prompts and decodes share every collective."""
    folder = tiny(kind, **options)
    script = Script(spec_of(folder), ranks, seed=3)
    script.fetch()
    script.step()
    prompts = prompts_of((5, 17, 1, 9, 30, 22, 3, 12, 8, 26), seed=2)
    for i, prompt in prompts.items():
        script.admit(i, prompt, at(LAYOUT_NAMES[i % 5], (3 * i) % ranks))
    serve(script, prompts, 12, chunk=9)
    assert_as_reference(folder, prompts, run(folder, script))


SWITCHED = [
    ("deepseek_v3", {}, 4),
    ("deepseek_v3", {}, 2),
    ("llama", {"kv_heads": 2}, 4),
    ("llama", {"kv_heads": 4}, 4),
    ("llama", {"kv_heads": 8}, 4),
    ("qwen3_moe", {"kv_heads": 2}, 2),
    *MODELS[14:],
]


@pytest.mark.parametrize(("kind", "options", "ranks"), SWITCHED)
def test_all_pairs_of_switches_change_nothing(
    tiny: TinyMaker, kind: str, options: dict[str, int], ranks: int
) -> None:
    """Red when a page is read that nobody wrote, or a shadow write goes missing.

    Each request takes its own tour of all 20 pairs: some while decoding, some in the middle of a prompt. Staging
    lasts 0 to 3 ordinary steps, homes change, some stagings are cancelled.
    """
    folder = tiny(kind, **options)
    draw = random.Random(7)
    script = Script(spec_of(folder), ranks, kv_pages=1500, seed=5)
    script.fetch()
    script.step()
    prompts = prompts_of((6, 21, 90), seed=4)
    tours = {i: tour(LAYOUT_NAMES[i], draw) for i in prompts}
    for i, prompt in prompts.items():
        script.admit(i, prompt, at(tours[i].pop(0), draw.randrange(ranks)))
    patience = dict.fromkeys(prompts, 1)
    while any(tours.values()):
        for i in prompts:
            r = script.requests[i]
            patience[i] -= 1
            if patience[i] < 0 and tours[i] and r.next is None:
                script.stage(i, at(tours[i][0], draw.randrange(ranks)))
                patience[i] = draw.randrange(1, 4)
            elif patience[i] < 0 and r.next is not None:
                if draw.random() < 0.1:
                    script.cancel(i)
                else:
                    script.flip(i)
                    tours[i].pop(0)
                patience[i] = draw.randrange(2)
        serve(script, prompts, 1, chunk=2)
    assert_as_reference(folder, prompts, run(folder, script))


@pytest.mark.parametrize(("kind", "options"), [("deepseek_v3", {}), ("llama", {"kv_heads": 4})])
def test_a_projection_toggles_at_any_boundary(tiny: TinyMaker, kind: str, options: dict[str, int]) -> None:
    """Red when dp <-> dop or cp <-> dcp need more than a flip: no page moves, rows and homes stay."""
    folder = tiny(kind, **options)
    script = Script(spec_of(folder), 4)
    script.fetch()
    script.step()
    prompts = prompts_of((20, 11, 9, 26), seed=6)
    for i, prompt in prompts.items():
        script.admit(i, prompt, at("dop" if i % 2 else "dcp", i))
    for step in range(12):
        serve(script, prompts, 1, chunk=5)
        for i in prompts:
            names = ("dop", "dp") if i % 2 else ("dcp", "cp")
            script.flip(i, at(names[(step + 1) % 2], i))
    assert not any(step.plan.copies for step in script.steps[1:])
    assert_as_reference(folder, prompts, run(folder, script))


@pytest.mark.parametrize("layout", ["tp", "dop", "dcp"])
def test_a_page_is_evacuated_while_it_is_written(tiny: TinyMaker, layout: str) -> None:
    """Red when appends miss the shadow page: the old one is poisoned once the move is done."""
    folder = tiny("deepseek_v3")
    script = Script(spec_of(folder), 2, block_size=8)
    prompts = prompts_of((9, 19), seed=8)
    for i, prompt in prompts.items():
        script.admit(i, prompt, at(layout, i))
    serve(script, prompts, 3, chunk=10)
    for block in (0, 1, 2):
        request = script.requests[1]
        _, group, rank = next(key for key in request.copies if key[0] == block)
        script.evacuate(1, block, group, rank)
        serve(script, prompts, 2)
        script.move()
        serve(script, prompts, 2)
    assert_as_reference(folder, prompts, run(folder, script))


def test_a_shard_that_is_not_resident_is_not_read(tiny: TinyMaker) -> None:
    """Red when full projections read slots that may be KV pages."""
    folder = tiny("deepseek_v3")
    script = Script(spec_of(folder), 2)
    script.admit(0, random_prompt(5), at("dp", 1))
    script.chunk(0, 5)
    script.step()
    with pytest.raises(AssertionError, match="resident"):
        run(folder, script)


def test_replicas_that_were_dropped_are_not_needed(tiny: TinyMaker) -> None:
    """Red when sharded rows touch another shard than the rank's own: the slots are poisoned here."""
    folder = tiny("deepseek_v3")
    script = Script(spec_of(folder), 4)
    script.fetch()
    script.step()
    script.admit(0, random_prompt(9), at("dp", 2))
    script.chunk(0, 9)
    script.step()
    script.flip(0, at("dop", 2))
    geometry = script.memory.geometry
    for rank in range(4):
        script.drop(rank)
        script.retired += [
            (rank, page) for shard in range(4) if shard != rank for page in geometry.slot(shard)
        ]
    script.decode(0)
    script.step()
    for _ in range(5):
        script.decode(0)
        script.step()
    outcome = run(folder, script)
    assert_as_reference(folder, {0: random_prompt(9)}, outcome)


@pytest.mark.parametrize("kind", ["deepseek_v3", "qwen3_moe"])
def test_bfloat16_stays_near(tiny: TinyMaker, kind: str) -> None:
    """Red when a layout goes wrong in bfloat16 only (packing of LSE, rope): another row's logits are far off."""
    folder = tiny(kind)
    prompts = prompts_of((11, 6, 14, 9, 5), seed=9)

    def first_logits(dtype: str) -> dict[int, torch.Tensor]:
        script = Script(spec_of(folder), 2, dtype=dtype)
        script.fetch()
        script.step()
        for i, prompt in prompts.items():
            script.admit(i, prompt, at(LAYOUT_NAMES[i], i % 2))
        serve(script, prompts, 2, chunk=20)
        return run(folder, script).logits

    exact, rough = first_logits("float32"), first_logits("bfloat16")
    for i in prompts:
        spread = float(exact[i][0].std())
        assert float((exact[i][0] - rough[i][0]).abs().mean()) < 0.3 * spread


@pytest.mark.parametrize(
    ("kind", "options", "divided"),
    [
        ("deepseek_v3", {}, True),
        ("deepseek_v3", {}, False),
        ("llama", {"kv_heads": 2}, True),
        ("llama", {"kv_heads": 4}, True),
        ("glm_moe_dsa", {"layers": 4}, True),
    ],
)
def test_every_rank_enters_the_collectives_of_the_plan(
    tiny: TinyMaker, kind: str, options: dict[str, int], divided: bool
) -> None:
    """Red when a rank skips a collective because it has no rows, or sends other counts than the plan says.

    The list is derived from the plan alone; what the ranks did is recorded.
    """
    folder = tiny(kind, **options)
    spec = spec_of(folder)
    script = Script(spec, 4, seed=11)
    script.fetch()
    script.step()
    prompts = prompts_of((25, 6, 14, 9, 18), seed=9)
    for i, prompt in prompts.items():
        script.admit(i, prompt, at(LAYOUT_NAMES[i], 1))
    serve(script, prompts, 2, chunk=8)
    for i in prompts:
        script.stage(i, at(LAYOUT_NAMES[(i + 1) % 5], 2))
    serve(script, prompts, 3, chunk=8)
    outcome = run(folder, script, gather_tokens=8, divided=divided)
    w = widths(spec, 4, 4, divided=divided)
    assert (w.down > 0) == (divided and spec.is_mla)
    for number, step in enumerate(script.steps):
        routes = route(step.spans, 4)
        ridden = [] if spec.is_mla else rides(routes, script.topo, 4)
        layers = []
        for layer in range(spec.num_layers):
            candidates = None
            if spec.indexer is not None and spec.has_indexer(layer):
                chosen = selecting(routes, script.topo, 4, spec.indexer.top_k)
                candidates = counts_candidates(routes, chosen) if chosen and chosen.shared else None
            layers += layer_collectives(routes, ridden, script.topo, 4, 8, w, candidates)
        for rank in range(4):
            calls = [call for call in outcome.calls[rank][number] if call[0] != "all_gather"]
            if not step.spans:
                assert not calls
                continue
            assert calls[0] == ("all_reduce", routes.num_rows * spec.hidden_size)  # the embedding
            wanted = [_as_called(c.op, c.counts, rank) for c in layers]
            assert calls[1:] == wanted, f"rank {rank}, step {number}"


def _as_called(op: str, counts: tuple[tuple[int, ...], ...], rank: int) -> tuple[str, object]:
    if op == "all_reduce":
        return op, counts[0][0]
    if op == "all_gather_v":
        return op, [row[rank] for row in counts]
    return op, (list(counts[rank]), [row[rank] for row in counts])


def test_a_seeded_request_does_not_change_in_other_company(tiny: TinyMaker) -> None:
    """Red when a draw depends on batch mates, on a preemption or on a switch (CASES 44)."""
    folder = tiny("deepseek_v3")
    spec, hot = spec_of(folder), SamplingParams(temperature=0.9, top_k=50, top_p=0.95, max_tokens=100)
    prompt = random_prompt(9, seed=1)

    def serve_alone(layout: str) -> list[int]:
        script = Script(spec, 2)
        script.admit(0, prompt, at(layout), params=hot, seed=1234)
        serve(script, {0: prompt}, 15)
        return run(folder, script).tokens[0]

    alone = serve_alone("tp")
    assert len(set(alone)) > 5
    assert serve_alone("dop") == alone
    script = Script(spec, 2)
    mates = prompts_of((30, 4, 9), seed=3)
    script.admit(0, prompt, at("dcp"), params=hot, seed=1234)
    for i, mate in mates.items():
        params = SamplingParams(temperature=2.0, max_tokens=100) if i else GREEDY
        script.admit(10 + i, mate, at("tp"), params=params, seed=77 + i)
    everyone = {0: prompt, **{10 + i: mate for i, mate in mates.items()}}
    serve(script, everyone, 4)
    script.stage(0, at("dop", 1))
    serve(script, everyone, 2)
    script.flip(0)
    serve(script, everyone, 2)
    gone = script.requests[0]
    script.end(0)
    script.step()
    so_far = alone[: gone.num_tokens - len(prompt)]
    script.admit(0, [*prompt, *so_far], at("tp"), num_prompt=len(prompt), params=hot, seed=1234)
    serve(script, {0: prompt}, 1)
    while script.requests[0].computed < len(prompt) + len(so_far):
        serve(script, {0: prompt}, 1)
    serve(script, {0: prompt}, 5)
    outcome = run(folder, script)
    assert outcome.tokens[0] == alone[: len(outcome.tokens[0])]
    assert len(outcome.tokens[0]) > len(so_far)


def test_forced_tokens_are_followed(tiny: TinyMaker) -> None:
    """Red when teacher forcing shifts by one, or the gap is not that of the forced token."""
    folder = tiny("llama", kv_heads=2)
    script, prompt, forced = Script(spec_of(folder), 2), random_prompt(6), random_prompt(5, seed=2)
    script.admit(0, prompt, at("dcp"), forced=forced)
    serve(script, {0: prompt}, 8)
    outcome = run(folder, script, gaps=True)
    assert outcome.tokens[0][:5] == list(forced)
    wanted = reference_logits(folder, [*prompt, *outcome.tokens[0]])[len(prompt) - 1 : -1]
    gaps = [gap for result in outcome.results[0] for gap in result.gaps]
    for token, row, gap in zip(forced, wanted, gaps, strict=False):
        assert abs(float(row.max() - row[token]) - gap) < 1e-4
    for row, gap in zip(wanted[5:], gaps[5:], strict=True):
        best = row.topk(2).values
        assert abs(float(best[0] - best[1]) - gap) < 1e-4
