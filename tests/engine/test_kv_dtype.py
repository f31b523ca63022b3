"""KV in bfloat16 and FP8: one rounding at the token's first writing, the same whatever layout reads it afterwards.

The oracle is transformers with a cache that rounds what it is given, so nothing but an element that lies on the edge
between two numbers of the type can make a difference.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from splash.hal.fp8 import packed, unpacked
from splash.layout.layouts import LAYOUTS
from splash.spec.packing import Packing
from tests.conftest import TinyMaker
from tests.engine.served import Served
from tests.tiny import load_reference, random_prompt, reference_logits

PROMPTS = [random_prompt(length, seed=length) for length in (5, 26)]
FORCED = random_prompt(12, seed=99)
TOLERANCE = {"bfloat16": 6e-4, "fp8": 3e-3}
"""Of the mean difference of logits: an element on an edge moves them by less, the rounding itself by much more."""
MODELS = [
    ("deepseek_v3", "bfloat16"),
    ("deepseek_v3", "fp8"),
    ("deepseek_v32", "fp8"),
    ("glm_moe_dsa", "fp8"),
    ("llama", "bfloat16"),
]


def _rounding_cache(config: Any, kv_dtype: str) -> Any:
    """transformers' cache, which for latent attention is given (latent, rope key), else (keys, values)."""
    from transformers import DynamicCache

    def to_bfloat16(x: torch.Tensor) -> torch.Tensor:
        return x.bfloat16().float()

    def to_fp8(x: torch.Tensor) -> torch.Tensor:
        packing = Packing(x.shape[-1])
        return unpacked(packed(x, packing), packing)

    first = to_fp8 if kv_dtype == "fp8" else to_bfloat16

    class Rounding(DynamicCache):
        def update(self, keys: torch.Tensor, values: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            return super().update(first(keys), to_bfloat16(values), *args, **kwargs)

        def update_indexer(self, keys: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            return super().update_indexer(first(keys), *args, **kwargs)

    return Rounding(config=config)


def _expected(folder: Path, kv_dtype: str) -> list[torch.Tensor]:
    """Per prompt the logits [tokens, vocab] along FORCED."""
    found = []
    for prompt in PROMPTS:
        ids = torch.tensor([[*prompt, *FORCED[:-1]]])
        with torch.inference_mode():
            model = load_reference(folder)
            cache = _rounding_cache(model.config, kv_dtype)
            logits = model(input_ids=ids, cache=cache, use_cache=True).logits[0]
        found.append(logits[len(prompt) - 1 :].float())
    return found


def _served(folder: Path, ranks: int, kv_dtype: str, layouts: list[str]) -> list[torch.Tensor]:
    """The same, through `layouts` one after the other."""
    with Served(folder, ranks=ranks, layout=layouts[0], kv_dtype=kv_dtype) as served:
        served.step()
        served.switch(layouts[0])
        requests = [served.add(prompt, len(FORCED), forced=FORCED) for prompt in PROMPTS]
        for layout in layouts[1:]:
            served.steps(2)
            served.switch(layout)
        served.drain()
        return [torch.stack(served.logits[request]) for request in requests]


def _assert_near(found: list[torch.Tensor], expected: list[torch.Tensor], kv_dtype: str) -> None:
    for logits, others in zip(found, expected, strict=True):
        assert (logits - others).abs().mean() < TOLERANCE[kv_dtype]


@pytest.mark.parametrize(("kind", "kv_dtype"), MODELS)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_each_layout_reads_what_was_rounded_once(
    tiny: TinyMaker, kind: str, kv_dtype: str, ranks: int
) -> None:
    """Red when what is written is not what is read, in one layout: own pages, exchanged, striped or gathered."""
    folder = tiny(kind)
    expected = _expected(folder, kv_dtype)
    for layout in LAYOUTS if ranks > 1 else ["dp"]:
        _assert_near(_served(folder, ranks, kv_dtype, [layout]), expected, kv_dtype)


@pytest.mark.parametrize(("kind", "kv_dtype"), MODELS)
def test_switches_move_pages_as_they_are(tiny: TinyMaker, kind: str, kv_dtype: str) -> None:
    """Red when a copy or a shadow write treats packed pages as numbers."""
    folder = tiny(kind)
    found = _served(folder, 2, kv_dtype, ["tp", "dop", "dcp", "dp", "cp", "tp"])
    _assert_near(found, _expected(folder, kv_dtype), kv_dtype)


@pytest.mark.parametrize(("kind", "kv_dtype"), MODELS)
def test_rounding_is_seen(tiny: TinyMaker, kind: str, kv_dtype: str) -> None:
    """Red when `kv_dtype` is ignored: the logits would be those of float32 KV."""
    folder = tiny(kind)
    exact = reference_logits(folder, [*PROMPTS[1], *FORCED[:-1]])[len(PROMPTS[1]) - 1 :]
    assert (_served(folder, 2, kv_dtype, ["tp"])[1] - exact).abs().mean() > 5 * TOLERANCE[kv_dtype]
