"""A quantised checkpoint serves the tokens of the weights that it means, in any layout and across switches."""

from __future__ import annotations

import pytest
import torch

from tests.conftest import QuantisedMaker
from tests.engine.served import Served
from tests.tiny import clear_reference

NUM_TOKENS = 24
TOLERANCE = 1e-4


@pytest.mark.parametrize(
    ("scheme", "ranks"), [("fp8", 1), ("fp8", 2), ("fp8", 4), ("fp8_uint8_bytes", 2), ("int8", 2)]
)
def test_tokens_of_the_dequantised_twin(quantised_tiny: QuantisedMaker, scheme: str, ranks: int) -> None:
    """Red when any weight of a served model is not element times scale: transformers has the float32 twin."""
    made = quantised_tiny("deepseek_v3", scheme)
    refs = [clear_reference(made.twin, length, NUM_TOKENS, seed=length) for length in (3, 17)]
    with Served(made.folder, ranks=ranks, layout="tp") as served:
        requests = [served.add(ref.prompt, NUM_TOKENS) for ref in refs]
        for layout in ("dop", "dp", "cp", "dcp", "tp") if ranks > 1 else ():
            served.steps(2)
            served.switch(layout)
        served.drain()
        for ref, request in zip(refs, requests, strict=True):
            assert tuple(served.outputs[request]) == ref.token_ids
            assert (torch.stack(served.logits[request]) - ref.logits).abs().max() < TOLERANCE
