"""The makers of tiny checkpoints and their oracle, on which the other tests stand."""

from __future__ import annotations

import json

import pytest
import torch

from tests import tiny as tiny_models
from tests.conftest import TinyMaker


@pytest.mark.parametrize("kind", tiny_models.KINDS)
def test_greedy_and_teacher_forced_references_agree(tiny: TinyMaker, kind: str) -> None:
    """Red when the oracle's cache, or the way we drive it, changes what it computes."""
    reference = tiny_models.clear_reference(tiny(kind), 20, 8)
    forced = tiny_models.reference_logits(tiny(kind), reference.prompt + reference.token_ids)
    assert forced[19:-1].argmax(-1).tolist() == list(reference.token_ids)
    torch.testing.assert_close(forced[19:-1], reference.logits, atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", tiny_models.KINDS)
def test_the_next_token_depends_on_the_whole_prompt(tiny: TinyMaker, kind: str) -> None:
    """Red when the random weights become so flat that a lost page of KV would not show."""
    prompt = list(tiny_models.random_prompt(64))
    changed = [prompt[0] + 1, *prompt[1:]]
    before, after = (tiny_models.reference_logits(tiny(kind), ids)[-1] for ids in (prompt, changed))
    assert (before - after).abs().max() > 1e-2


def test_shards_and_an_index(tiny: TinyMaker) -> None:
    """Red when the tests of checkpoints in several files stop using several files."""
    folder = tiny("llama", shards=3)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) >= 3
    assert not (folder / "model.safetensors").exists()


def test_same_seed_same_weights(tiny: TinyMaker) -> None:
    """Red when a checkpoint cannot be made again."""
    prompt = tiny_models.random_prompt(10)
    one, other = (tiny_models.reference_logits(tiny("llama", shards=n), prompt) for n in (1, 3))
    torch.testing.assert_close(one, other, atol=1e-5, rtol=0)
