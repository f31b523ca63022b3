"""What an indexer chooses: the oracle's tokens at every layer, in every layout; and the traps of MODELS §2.7.

Of these, unclear references (small margins, ties of routers and indexers) are refused by `tests.tiny.Reference.clear`,
and company in a batch is varied by every other test here; the rest is turned on below, one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from splash.hal.ranking import NOTHING
from splash.layout.layouts import LAYOUTS
from splash.model.attention.indexer import Indexer
from splash.model.attention.selection import SelectingRows
from splash.spec.model import MLASpec, ModelSpec, MoESpec
from tests.conftest import TinyMaker
from tests.engine.pipeline_kit import Chosen, assert_as_reference, run, spec_of, worst_error
from tests.engine.script import Script, at, prompts_of, serve
from tests.tiny import (
    INDEX_TOP_K,
    clear_reference,
    random_prompt,
    reference_greedy,
    reference_selections,
)

LAYOUT_NAMES = tuple(LAYOUTS)
KINDS = ("deepseek_v32", "glm_moe_dsa")


def assert_chosen_as_reference(
    folder: Path,
    spec: ModelSpec,
    prompts: dict[int, tuple[int, ...]],
    tokens: dict[int, list[int]],
    chosen: Chosen,
) -> None:
    """Every row beyond top-k was chosen for in every layer with an indexer, as transformers chooses."""
    indexed = [layer for layer in range(spec.num_layers) if spec.has_indexer(layer)]
    for request, prompt in prompts.items():
        known = [*prompt, *tokens[request]][:-1]
        oracle = reference_selections(folder, known)
        assert list(oracle) == indexed
        for layer in indexed:
            for position in range(INDEX_TOP_K, len(known)):
                mine = chosen[layer, request, position]
                assert mine == oracle[layer][position], (layer, request, position)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_chosen_tokens_are_the_oracles(tiny: TinyMaker, kind: str, ranks: int) -> None:
    """Red when a stripe's candidate is lost, a tie breaks otherwise, or a row sees what lies after it.

    All layouts in the same steps, by exchange and by gathering, prompts in chunks.
    """
    folder = tiny(kind, layers=4)
    script = Script(spec_of(folder), ranks, kv_pages=900, seed=3)
    script.fetch()
    script.step()
    prompts = prompts_of((21, 50, 64, 33, 70, 19, 66, 40), seed=5)
    for i, prompt in prompts.items():
        script.admit(i, prompt, at(LAYOUT_NAMES[i % 5], i % ranks))
    serve(script, prompts, 14, chunk=9)
    chosen: Chosen = {}
    outcome = run(folder, script, chosen=chosen)
    assert_as_reference(folder, prompts, outcome)
    assert_chosen_as_reference(folder, script.spec, prompts, outcome.tokens, chosen)


def test_indexers_run_on_their_layers_only(tiny: TinyMaker) -> None:
    """Red when the schedule is off by one (offset 2 would be 0, 1, 5, 9), or pages hold keys of other layers."""
    folder = tiny("glm_moe_dsa", layers=12, indexer_types=None, index_topk_freq=4, index_skip_topk_offset=3)
    script = Script(spec_of(folder), 2)
    prompts = prompts_of((30, 41), seed=1)
    for i, prompt in prompts.items():
        script.admit(i, prompt, at(("tp", "dcp")[i]))
    serve(script, prompts, 8, chunk=16)
    chosen: Chosen = {}
    outcome = run(folder, script, chosen=chosen)
    assert_as_reference(folder, prompts, outcome)
    assert {layer for layer, _, _ in chosen} == {0, 1, 2, 6, 10}
    assert {s.layer for s in script.memory.pages.sections if s.field.name == "index"} == {0, 1, 2, 6, 10}


def test_nothing_is_scored_while_all_tokens_are_seen(tiny: TinyMaker) -> None:
    """Red when a context within top-k is treated as sparse; one token more is."""
    folder = tiny("deepseek_v32", layers=4)
    for num_prompt, selects in ((INDEX_TOP_K - 2, False), (INDEX_TOP_K - 1, True)):
        script, prompt = Script(spec_of(folder), 2), random_prompt(num_prompt)
        script.admit(0, prompt, at("dcp"))
        serve(script, {0: prompt}, 3, chunk=32)
        chosen: Chosen = {}
        assert_as_reference(folder, {0: prompt}, run(folder, script, chosen=chosen))
        assert bool(chosen) is selects


def test_equal_scores_choose_alike_in_every_layout(tiny: TinyMaker) -> None:
    """Red when ties depend on where tokens lie. With one index head half of all scores are exactly zero, which is why
    such a model is no oracle: transformers' own choice among them is by chance, and our references refuse it."""
    folder = tiny("deepseek_v32", layers=4, index_n_heads=1)
    prompt = random_prompt(40, seed=2)
    assert not reference_greedy(folder, prompt, 4).clear
    seen: list[tuple[list[int], torch.Tensor]] = []
    for layout in LAYOUT_NAMES:
        script = Script(spec_of(folder), 2)
        script.fetch()
        script.step()
        script.admit(0, prompt, at(layout, 1))
        serve(script, {0: prompt}, 12, chunk=11 if layout == "tp" else 6)
        outcome = run(folder, script)
        seen.append((outcome.tokens[0][:4], outcome.logits[0][:4]))
    for tokens, logits in seen[1:]:
        assert tokens == seen[0][0]
        assert (logits - seen[0][1]).abs().max() < 1e-4


def test_ranks_that_choose_differently_are_caught(tiny: TinyMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when debug mode does not compare choices: hidden states are the same on all ranks even then."""
    share = Indexer._share

    def without_the_best(self: Indexer, tokens: torch.Tensor, rows: SelectingRows) -> torch.Tensor:
        merged = share(self, tokens, rows)
        return merged.masked_fill(merged == merged.max(), NOTHING) if self.comm.rank else merged

    monkeypatch.setattr(Indexer, "_share", without_the_best)
    script, prompt = Script(spec_of(tiny("deepseek_v32", layers=4)), 2), random_prompt(30)
    script.admit(0, prompt, at("dcp"))
    serve(script, {0: prompt}, 2, chunk=30)
    with pytest.raises(AssertionError, match="chosen tokens"):
        run(tiny("deepseek_v32", layers=4), script)


def flip_main_rope(spec: ModelSpec) -> ModelSpec:
    return replace(spec, rope=replace(spec.rope, interleaved=not spec.rope.interleaved))


def flip_index_rope(spec: ModelSpec) -> ModelSpec:
    assert spec.indexer is not None
    return replace(spec, indexer=replace(spec.indexer, interleaved=not spec.indexer.interleaved))


def more_tokens(spec: ModelSpec) -> ModelSpec:
    assert spec.indexer is not None
    return replace(spec, indexer=replace(spec.indexer, top_k=INDEX_TOP_K + 1))


def reuse_the_first(spec: ModelSpec) -> ModelSpec:
    """Layer 1 takes the choice of layer 0, as layer 2 takes that of layer 1."""
    return replace(spec, indexed=(True, False, *spec.indexed[2:]))


def no_groups(spec: ModelSpec) -> ModelSpec:
    ffns = [replace(ffn, n_group=1, topk_group=1) if isinstance(ffn, MoESpec) else ffn for ffn in spec.ffns]
    return replace(spec, ffns=tuple(ffns))


def no_mscale(spec: ModelSpec) -> ModelSpec:
    assert isinstance(spec.attention, MLASpec)
    scale = (spec.attention.nope_dim + spec.attention.rope_dim) ** -0.5
    return replace(spec, attention=replace(spec.attention, softmax_scale=scale))


def config_eps(spec: ModelSpec) -> ModelSpec:
    """As other engines do for GLM: the latent norms' epsilon from rms_norm_eps."""
    assert isinstance(spec.attention, MLASpec)
    return replace(spec, attention=replace(spec.attention, latent_eps=spec.norm_eps))


TRAPS = [
    ("deepseek_v32", flip_main_rope, 1e-2),
    ("glm_moe_dsa", flip_main_rope, 1e-2),
    ("deepseek_v32", flip_index_rope, 1e-2),
    ("glm_moe_dsa", flip_index_rope, 1e-2),
    ("deepseek_v32", no_mscale, 1e-2),
    ("glm_moe_dsa", config_eps, 3e-5),
    ("deepseek_v32", no_groups, 1e-2),
    ("glm_moe_dsa", reuse_the_first, 1e-2),
    ("deepseek_v32", more_tokens, 1e-2),
]


@pytest.mark.parametrize(("kind", "trap", "effect"), TRAPS, ids=[f"{k}-{t.__name__}" for k, t, _ in TRAPS])
def test_a_trap_shows(
    tiny: TinyMaker, kind: str, trap: Callable[[ModelSpec], ModelSpec], effect: float
) -> None:
    """Red when a comparison with transformers could not tell the trap (MODELS §2.7) from the model."""
    folder = tiny(kind, layers=4)
    prompt = clear_reference(folder, 60, 1).prompt
    right, wrong = (worst_error(folder, spec, prompt) for spec in (spec_of(folder), trap(spec_of(folder))))
    assert right < effect / 2
    assert wrong > effect


@pytest.mark.parametrize("kind", KINDS)
def test_an_indexer_shows_beyond_top_k_only(tiny: TinyMaker, kind: str) -> None:
    """Red when these tests' contexts are within top-k: there a wrong indexer is invisible."""
    folder = tiny(kind, layers=4)
    wrong = flip_index_rope(spec_of(folder))
    assert worst_error(folder, wrong, random_prompt(INDEX_TOP_K)) < 1e-4
    assert worst_error(folder, wrong, clear_reference(folder, 60, 1).prompt) > 1e-2
