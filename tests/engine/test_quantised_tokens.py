"""A quantised checkpoint serves the tokens of the weights that it means, in any layout and across switches."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from splash.cli.doctor import command
from splash.core.env import config_dir
from splash.exec.weights import tensor_bytes
from splash.model.checkpoint import open_checkpoint
from splash.model.loader import load_rank, load_shard
from tests.conftest import QuantisedMaker
from tests.engine.served import Served
from tests.tiny import clear_reference
from tests.unit.loading_kit import slot_views

NUM_TOKENS = 24
TOLERANCE = 1e-4


@pytest.mark.parametrize(
    ("model", "scheme", "ranks"),
    [
        ("deepseek_v3", "fp8", 1),
        ("deepseek_v3", "fp8", 2),
        ("deepseek_v3", "fp8", 4),
        ("deepseek_v3", "fp8_uint8_bytes", 2),
        ("deepseek_v3", "int8", 2),
        ("deepseek_v32", "fp8_ue8m0", 2),
        ("llama", "int8", 2),
    ],
)
def test_tokens_of_the_dequantised_twin(
    quantised_tiny: QuantisedMaker, model: str, scheme: str, ranks: int
) -> None:
    """Red when any weight of a served model is not element times scale: transformers has the float32 twin."""
    made = quantised_tiny(model, scheme)
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


def test_what_becomes_of_quantised_weights_is_said(quantised_tiny: QuantisedMaker) -> None:
    """Red when a user is not told that the CPU port dequantises, or the sum of memory counts elements of one byte."""
    made = quantised_tiny("deepseek_v3", "fp8")
    opened = [Served(folder, ranks=2, layout="tp").deployment for folder in (made.folder, made.twin)]
    quantised, twin = opened
    assert twin.notes == ()
    held = sum(tensor_bytes(load_all(made.folder, rank)) for rank in range(2)) / 2
    assert quantised.notes == (
        "fp8 in blocks of 128x128, dequantised to float32 when loaded:"
        f" {held / 1e6:,.1f} MB of weights on each of 2 ranks,"
        f" {quantised.checkpoint.num_bytes / 1e6:,.1f} MB in files",
    )


def load_all(folder: Path, rank: int) -> tuple[object, ...]:
    """Everything that one of two ranks loads."""
    with open_checkpoint(folder) as checkpoint:
        slot = slot_views(checkpoint.spec, 2, torch.float32)
        load_shard(checkpoint, ranks=2, shard=rank, out=slot)
        weights = load_rank(checkpoint, rank=rank, ranks=2, dtype=torch.float32)
    return weights, *slot.values()


def test_the_doctor_says_what_a_port_keeps_quantised() -> None:
    """Red when the choice is made silently."""
    said = CliRunner(env={"COLUMNS": "200"}).invoke(command).output
    assert "weights: fp8, int8 dequantised when loaded" in said
    assert f"profiles of your own: {config_dir()}" in said
    assert "KV: float32, bfloat16, fp8 (fp8 for latent attention, unpacked at each read)" in said


def test_the_doctor_keeps_to_the_columns_it_is_given() -> None:
    """Red when a line of the doctor is wider than COLUMNS, or nobody is told that GPUs have no port."""
    said = CliRunner(env={"COLUMNS": "80"}).invoke(command).output
    assert max(map(len, said.splitlines())) <= 80
    assert "there is no GPU port in this version yet" in said
