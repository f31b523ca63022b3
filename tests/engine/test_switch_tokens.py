"""The invariant of the project: the tokens are transformers' tokens, whatever layout and whatever switch.

Greedy, fp32, prompts with a clear top-1 margin; logits within 1e-4 of transformers', so also of any static layout.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from splash.core.events import RequestPreempted
from splash.layout.layouts import LAYOUTS
from tests.conftest import TinyMaker
from tests.engine.served import BLOCK_SIZE, Served
from tests.engine.switching_kit import serve_in, serve_more_than_fits, switch_all_pairs, switch_at_random
from tests.tiny import Reference, clear_reference, reference_logits

NUM_TOKENS = 40
LENGTHS = (1, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1, 26)
"""A page less one, a page, a page and one, and several chunks."""

MODELS = [
    ("deepseek_v3", {}),
    ("deepseek_v3_no_q_lora", {}),
    ("glm4_moe_lite", {}),
    ("llama", {"kv_heads": 2}),
    ("llama", {"kv_heads": 8}),
    ("qwen3_moe", {"kv_heads": 4}),
    ("deepseek_v32", {"layers": 4}),
    ("glm_moe_dsa", {"layers": 4}),
]
SPARSE = MODELS[6:]
"""Contexts of up to 66 tokens, of which 16 are chosen."""
IDS = [f"{kind}{''.join(f'-{name}{n}' for name, n in options.items())}" for kind, options in MODELS]


@pytest.fixture(scope="module")
def references() -> dict[Path, list[Reference]]:
    return {}


def refs_of(folder: Path, known: dict[Path, list[Reference]]) -> list[Reference]:
    if folder not in known:
        known[folder] = [clear_reference(folder, n, NUM_TOKENS, seed=n) for n in LENGTHS]
    return known[folder]


@pytest.mark.parametrize(
    ("kind", "options", "layout", "ranks"),
    [
        (*model, layout, ranks)
        for model in MODELS
        for ranks in (1, 2, 4, 8)
        for layout in sorted(LAYOUTS)
        if ranks > 1 or layout == "dp"
    ],
)
def test_each_layout(
    kind: str, options: dict[str, int], layout: str, ranks: int, tiny: TinyMaker, references: dict
) -> None:
    """One rank has one dataflow whatever the layout; eight, which are slow as threads, serve fewer tokens."""
    folder = tiny(kind, **options)
    refs = refs_of(folder, references)
    with Served(folder, ranks=ranks, layout=layout) as served:
        serve_in(served, layout, refs)


@pytest.mark.parametrize(
    ("kind", "options", "ranks", "when"),
    [
        (*MODELS[0], 2, "decoding"),
        (*MODELS[0], 4, "mid-prompt"),
        (*MODELS[1], 2, "mid-prompt"),
        (*MODELS[2], 2, "decoding"),
        (*MODELS[3], 4, "decoding"),
        (*MODELS[4], 2, "mid-prompt"),
        (*MODELS[5], 4, "mid-prompt"),
        (*MODELS[5], 2, "decoding"),
        (*SPARSE[0], 4, "decoding"),
        (*SPARSE[1], 2, "mid-prompt"),
    ],
)
def test_all_twenty_switches(
    kind: str, options: dict[str, int], ranks: int, when: str, tiny: TinyMaker, references: dict
) -> None:
    folder = tiny(kind, **options)
    refs = refs_of(folder, references)
    with Served(folder, ranks=ranks, layout="tp") as served:
        switch_all_pairs(served, refs, first_steps=2 if when == "mid-prompt" else 8)


@pytest.mark.parametrize(
    ("kind", "options", "seed"),
    [*((*model, seed) for model in (MODELS[1], MODELS[4]) for seed in range(3)), (*SPARSE[1], 3)],
)
def test_fifty_switches_with_arrivals_and_aborts(
    kind: str, options: dict[str, int], seed: int, tiny: TinyMaker, references: dict
) -> None:
    folder = tiny(kind, **options)
    refs = refs_of(folder, references)
    with Served(folder, ranks=4, layout="tp", kv_pages=90) as served:
        switch_at_random(served, refs, random.Random(seed), times=50, own_goals=True)


@pytest.mark.parametrize(
    ("kind", "options", "layout", "kv_pages", "copies"),
    [
        (*MODELS[0], "tp", 2, 4),
        (*MODELS[0], "dp", 17, 2),
        (*MODELS[0], "cp", 17, 2),
        (*SPARSE[1], "cp", 17, 2),
    ],
)
def test_preemption_changes_no_token(
    kind: str,
    options: dict[str, int],
    layout: str,
    kv_pages: int,
    copies: int,
    tiny: TinyMaker,
    references: dict,
) -> None:
    """More requests than the pool can hold grown (under tp it has a weight slot of 192 pages more)."""
    folder = tiny(kind, **options)
    refs = refs_of(folder, references) * copies
    with Served(folder, ranks=2, layout=layout, kv_pages=kv_pages, watermark_pages=0) as served:
        serve_more_than_fits(served, layout, refs)


def test_seeded_sampling_depends_on_seed_and_position_only(tiny: TinyMaker) -> None:
    """Alone, with mates, preempted and switched: the same tokens; another seed: others (CASES 44)."""
    folder = tiny("deepseek_v3")
    prompt = tuple(range(5, 20))
    preempted: list[RequestPreempted] = []
    sampling = {"temperature": 0.9, "top_k": 50, "top_p": 0.95, "min_p": 0.01}

    def run(
        *, mates: bool, switches: Sequence[str] = (), layout: str = "tp", kv_pages: int = 200, seed: int = 7
    ) -> list[int]:
        with Served(folder, ranks=2, layout=layout, kv_pages=kv_pages, watermark_pages=0) as served:
            if layout != "tp":
                served.switch(layout)
            if mates:
                served.add(prompt[:4], 30, temperature=1.0)
                served.add(prompt[:9], 30)
            request = served.add(prompt, 30, seed=seed, **sampling)
            for layout in switches:
                served.steps(5)
                served.scheduler.set_target(layout, "test")
            served.drain()
            preempted.extend(e for e in served.events if isinstance(e, RequestPreempted))
            return served.outputs[request]

    alone = run(mates=False)
    assert run(mates=True) == alone
    assert run(mates=True, switches=("dp", "dcp", "cp", "dop")) == alone
    assert not preempted
    assert run(mates=True, layout="dp", kv_pages=14) == alone
    assert preempted
    assert run(mates=False, seed=8) != alone


@pytest.mark.parametrize(("kind", "length"), [("deepseek_v3", 20), ("deepseek_v32", 16)])
def test_bfloat16_serves_in_every_layout(kind: str, length: int, tiny: TinyMaker) -> None:
    """bf16 promises no equality: logits are near fp32's where nothing is chosen by a hair (no MoE, and no indexer up to
    the first token; the later ones are chosen for)."""
    folder = tiny(kind, first_k_dense_replace=3)
    prompt = tuple(range(3, 3 + length))
    exact = reference_logits(folder, prompt)[-1]
    with Served(folder, ranks=2, layout="tp", dtype="bfloat16") as served:
        for layout in ("dp", "cp", "dop", "dcp", "tp"):
            served.switch(layout)
            request = served.add(prompt, 8)
            served.drain()
            assert len(served.outputs[request]) == 8
            first = served.logits[request][0]
            assert torch.nn.functional.cosine_similarity(first, exact, dim=0) > 0.997
