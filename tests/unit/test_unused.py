"""What a checkpoint has beside its model's tensors: every name is of one kind, and what nobody misses is not told."""

from __future__ import annotations

import pytest

from splash.model.unused import Unused, layer_of, unused_tensors
from splash.spec.known import known_model
from splash.spec.tensors import model_tensors

SPEC = known_model("deepseek-v3")
"""61 layers; one more, layer 61, is for multi-token prediction."""
OWN = [tensor.name for tensor in model_tensors(SPEC)]


def test_what_the_model_computes_with_is_not_unused() -> None:
    """Red when a tensor, its scales, the shared output projection or rotary frequencies are reported."""
    scales = [name + "_scale_inv" for name in OWN]
    frequencies = "model.layers.1.self_attn.rotary_emb.inv_freq"
    assert unused_tensors(SPEC, [*OWN, *scales, "lm_head.weight", frequencies]) == Unused((), (), ())


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("model.layers.61.eh_proj.weight", "drafts"),
        ("model.layers.61.mlp.gate.weight", "drafts"),
        ("model.visual.blocks.0.attn.qkv.weight", "outside"),
        ("audio_tower.conv.weight", "outside"),
        ("model.layers.3.self_attn.qkv_proj.weight", "foreign"),
        ("model.layers.0.eh_proj.weight", "foreign"),
        ("model.layers.62.mlp.gate.weight", "foreign"),
    ],
)
def test_every_name_has_its_kind(name: str, kind: str) -> None:
    """Red when a decoder tensor of another model is let pass, or a draft layer or a tower is refused."""
    found = unused_tensors(SPEC, [*OWN, name])
    assert {"drafts": found.drafts, "outside": found.outside, "foreign": found.foreign} == {
        "drafts": (),
        "outside": (),
        "foreign": (),
        kind: (name,),
    }


def test_the_marks_of_a_draft_layer_are_for_all_its_tensors() -> None:
    """Red when a draft layer that config.json does not count is taken for another model's, or every layer after the
    model's own for a draft."""
    marked, plain = "model.layers.63.enorm.weight", "model.layers.63.mlp.gate.weight"
    other = "model.layers.64.mlp.gate.weight"
    found = unused_tensors(SPEC, [marked, plain, other])
    assert (found.drafts, found.foreign) == ((marked, plain), (other,))


def test_people_are_told_what_is_to_be_expected() -> None:
    """Red when a note leaves out a layer or the number of tensors, or foreign tensors look harmless."""
    found = unused_tensors(
        SPEC,
        [
            "model.layers.61.enorm.weight",
            "model.layers.61.hnorm.weight",
            "model.layers.63.enorm.weight",
            "eye.a",
            "eye.b",
        ],
    )
    drafts, outside = found.notes
    assert drafts.startswith("layer 61, 63 is for multi-token prediction: its 3 tensors")
    assert outside == "eye.a (and 1 more) is not part of the decoder: not loaded"
    assert unused_tensors(SPEC, ["model.layers.0.odd"]).notes == ()


def test_the_layer_of_a_name() -> None:
    """Red when a number elsewhere in a name counts as a layer."""
    assert layer_of("model.layers.12.mlp.experts.3.up_proj.weight") == 12
    assert layer_of("model.visual.layers.2.weight") is None
    assert layer_of("model.layers.x.weight") is None
