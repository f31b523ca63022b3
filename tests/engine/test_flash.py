"""GLM-5.3-Flash: recurrent layers, pooled indexers, four residual streams. Tokens are transformers' (fp32, greedy).

Four layers, of which two attend: contexts of up to 90 tokens, of which 4 pools of 4 tokens are chosen, and the tail.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from splash.core.errors import CheckpointError
from splash.exec import selecting
from splash.kv.pool import PageState
from splash.layout.layouts import LAYOUTS
from splash.model.checkpoint import open_checkpoint
from splash.model.layers.kda import KDA
from splash.spec.model import MLASpec, ModelSpec
from tests.conftest import TinyMaker
from tests.engine.pipeline_kit import Chosen, assert_as_reference, run, spec_of, worst_error
from tests.engine.script import Script, at, prompts_of, serve
from tests.engine.served import BLOCK_SIZE, Served
from tests.engine.switching_kit import (
    TOLERANCE,
    assert_equal,
    serve_in,
    serve_more_than_fits,
    switch_all_pairs,
    switch_at_random,
)
from tests.tiny import INDEX_TOP_K, Reference, clear_reference, load_reference, reference_logits

NUM_TOKENS = 32
LENGTHS = (1, BLOCK_SIZE - 1, BLOCK_SIZE + 1, 26, 50)
LAYOUT_NAMES = tuple(LAYOUTS)


@pytest.fixture(scope="module")
def folder(tiny: TinyMaker) -> Path:
    return tiny("glm5_next", layers=4)


@pytest.fixture(scope="module")
def refs(folder: Path) -> list[Reference]:
    return [clear_reference(folder, n, NUM_TOKENS, seed=n) for n in LENGTHS]


# ---- layouts and switches


@pytest.mark.parametrize(
    ("layout", "ranks"), [("dp", 1), *((layout, ranks) for ranks in (2, 4, 8) for layout in LAYOUT_NAMES)]
)
def test_each_layout(folder: Path, refs: list[Reference], layout: str, ranks: int) -> None:
    with Served(folder, ranks=ranks, layout=layout) as served:
        serve_in(served, layout, refs)


def test_chunks_longer_than_those_of_the_delta_rule(folder: Path) -> None:
    """Red when state or convolution are lost between chunks of a prompt, or between the parts that one is solved in."""
    long = [clear_reference(folder, n, 8, seed=n) for n in (150, 201)]
    with Served(folder, ranks=2, layout="cp", kv_pages=400, max_chunk=90, token_budget=140) as served:
        requests = [served.add(ref.prompt, 8) for ref in long]
        served.drain()
        assert_equal(served, long, requests)


@pytest.mark.parametrize(("ranks", "when"), [(2, "mid-prompt"), (4, "decoding")])
def test_all_twenty_switches(folder: Path, refs: list[Reference], ranks: int, when: str) -> None:
    """Red when a pool that is unfinished at a switch is lost, a state is not where its rank looks for it, or a page of
    one is overwritten by a shard. Pages come from weight slots first, so every growth moves states."""
    state_moves = 0
    with Served(folder, ranks=ranks, layout="tp") as served:
        submit = served.executor.submit

        def counted(plan):  # type: ignore[no-untyped-def]
            nonlocal state_moves
            state_moves += len(plan.state_moves)
            submit(plan)

        served.executor.submit = counted  # type: ignore[method-assign]
        switch_all_pairs(served, refs, first_steps=2 if when == "mid-prompt" else 8)
    assert state_moves > 0


def test_switches_with_arrivals_and_aborts(folder: Path, refs: list[Reference]) -> None:
    with Served(folder, ranks=2, layout="tp", kv_pages=170) as served:
        switch_at_random(served, refs, random.Random(3), times=30, own_goals=False)
        assert all(not pool.counts()[PageState.RECURRENT] for pool in served.scheduler.store.pools)


@pytest.mark.parametrize("layout", ["dp", "cp"])
def test_preemption_begins_a_new_state(folder: Path, refs: list[Reference], layout: str) -> None:
    """Red when a request goes on from the state that it had before its preemption."""
    with Served(folder, ranks=2, layout=layout, kv_pages=60, watermark_pages=0) as served:
        serve_more_than_fits(served, layout, refs)


@pytest.mark.parametrize("storage", [{"dtype": "bfloat16"}, {"kv_dtype": "fp8"}])
def test_coarser_types_stay_near(tiny: TinyMaker, storage: dict[str, str]) -> None:
    """Red when a pooled key is written as another type than its page has, or a state of another type than its own."""
    folder = tiny("glm5_next", layers=4, mlp_layer_types=["dense"] * 4)
    prompt = tuple(range(3, 53))
    exact = reference_logits(folder, prompt)[-1]
    with Served(folder, ranks=2, layout="tp", **storage) as served:
        for layout in ("dp", "dcp"):
            served.switch(layout)
            request = served.add(prompt, 2)
            served.drain()
            first = served.logits[request][0]
            assert torch.nn.functional.cosine_similarity(first, exact, dim=0) > 0.998


# ---- one step of all layouts, with every collective checked against the plan


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_chosen_tokens_are_the_oracles(folder: Path, ranks: int) -> None:
    """Red when a pool is chosen before its last token is seen, its tail is dropped, or a stripe's candidate is lost;
    also when a freed page of a state is still read, since those are filled with NaN."""
    script = Script(spec_of(folder), ranks, kv_pages=2000, seed=3)
    script.fetch()
    script.step()
    prompts = prompts_of((21, 50, 64, 33, 70, 19, 66, 40), seed=5)
    for i, prompt in prompts.items():
        script.admit(i, prompt, at(LAYOUT_NAMES[i % 5], i % ranks))
    serve(script, prompts, 4, chunk=9)
    for i in prompts:
        script.move_state(i, i % ranks)
    serve(script, prompts, 10, chunk=9)
    chosen: Chosen = {}
    outcome = run(folder, script, chosen=chosen)
    assert_as_reference(folder, prompts, outcome)
    for request, prompt in prompts.items():
        known = [*prompt, *outcome.tokens[request]][:-1]
        for layer, rows in oracle_choices(folder, known).items():
            for position in range(INDEX_TOP_K + 3, len(known)):
                assert chosen[layer, request, position] == rows[position], (layer, request, position)


def oracle_choices(folder: Path, token_ids: Sequence[int]) -> dict[int, list[set[int]]]:
    """By layer: the positions that transformers' indexer gives each of the tokens."""
    model, seen = load_reference(folder), {}
    indexers = [module for name, module in model.named_modules() if name.endswith("indexer")]

    def note(indexer: torch.nn.Module, _inputs: object, chosen: torch.Tensor) -> None:
        seen[indexer.layer_idx] = [{p for p in row if p >= 0} for row in chosen[0].tolist()]

    hooks = [indexer.register_forward_hook(note) for indexer in indexers]
    with torch.inference_mode():
        model(input_ids=torch.tensor([list(token_ids)]))
    for hook in hooks:
        hook.remove()
    return seen


def test_only_attending_layers_have_pages_and_shards(folder: Path) -> None:
    script = Script(spec_of(folder), 2)
    assert {s.layer for s in script.memory.pages.sections} == {1, 3}
    assert {t.layer for t in script.memory.shards.tensors} == {1, 3}


# ---- traps


def latent_eps(spec: ModelSpec) -> ModelSpec:
    """As in every other MLA model: 1e-6, whatever rms_norm_eps says."""
    assert isinstance(spec.attention, MLASpec)
    return replace(spec, attention=replace(spec.attention, latent_eps=1e-6))


def no_clamp(spec: ModelSpec) -> ModelSpec:
    return replace(spec, swiglu_limit=None)


def other_bound(spec: ModelSpec) -> ModelSpec:
    assert spec.kda is not None
    return replace(spec, kda=replace(spec.kda, gate_lower_bound=-1.0))


def fewer_iterations(spec: ModelSpec) -> ModelSpec:
    assert spec.hyper is not None
    return replace(spec, hyper=replace(spec.hyper, sinkhorn_iterations=1))


def more_pools(spec: ModelSpec) -> ModelSpec:
    assert spec.indexer is not None
    return replace(spec, indexer=replace(spec.indexer, top_k=INDEX_TOP_K + 4))


TRAPS = [
    (latent_eps, {"rms_norm_eps": 1e-2}, 1e-3),
    (no_clamp, {"swiglu_limit": 0.5}, 1e-2),
    (other_bound, {}, 1e-2),
    (fewer_iterations, {}, 1e-3),
    (more_pools, {}, 1e-2),
]


@pytest.mark.parametrize(("trap", "options", "effect"), TRAPS, ids=[trap.__name__ for trap, _, _ in TRAPS])
def test_a_trap_shows(
    tiny: TinyMaker, trap: Callable[[ModelSpec], ModelSpec], options: dict[str, float], effect: float
) -> None:
    """Red when a comparison with transformers could not tell the trap (MODELS §2.7) from the model."""
    folder = tiny("glm5_next", layers=4, **options)
    prompt = clear_reference(folder, 60, 1).prompt
    right, wrong = (worst_error(folder, spec, prompt) for spec in (spec_of(folder), trap(spec_of(folder))))
    assert right < min(TOLERANCE, effect / 2)
    assert wrong > effect


def test_the_gates_bound_is_no_clamp(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when -exp(A) softplus(x), cut at -5, would pass for -5 sigmoid(exp(A) x)."""

    def clamped(self: KDA, f: torch.Tensor) -> torch.Tensor:
        x = (f @ self.weights.f_b.t() + self.weights.dt_bias).unflatten(-1, (self.heads, -1))
        decay = -self.weights.decay[:, None] * torch.nn.functional.softplus(x)
        return decay.clamp(min=self.spec.gate_lower_bound)

    monkeypatch.setattr(KDA, "_decay", clamped)
    assert worst_error(folder, spec_of(folder), clear_reference(folder, 60, 1).prompt) > 1e-2


def test_the_tail_is_always_attended(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when a row's own pool, and with it the row itself, could be left out."""
    kept = selecting._tails
    monkeypatch.setattr(selecting, "_tails", lambda *args: torch.full_like(kept(*args), -1))
    prompt = clear_reference(folder, 61, 1).prompt
    assert len(prompt) % 4
    assert worst_error(folder, spec_of(folder), prompt) > 1e-2


def test_the_default_pool_is_not_the_checkpoints(tiny: TinyMaker, tmp_path: Path) -> None:
    """Without index_kpool a config means 16, and its weights say so: a named error, not other tokens."""
    source = tiny("glm5_next", layers=4)
    config = json.loads((source / "config.json").read_text())
    del config["text_config"]["index_kpool"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").symlink_to(source / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"index_kpool_compress_ape has shape \[4, 32\].*\[16, 32\]"):
        open_checkpoint(tmp_path)
