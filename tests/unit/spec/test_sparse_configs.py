"""Indexers, recurrent layers and hyper-connections as configs give them, and by name what is refused."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from splash.core.errors import ConfigError
from splash.spec.config import normalise
from splash.spec.model import HyperSpec, IndexerSpec, KDASpec, MLASpec, ModelSpec
from tests.unit import config_shapes as shapes

SPARSE = [name for name, shape in shapes.SHAPES.items() if "index_topk" in str(shape)]


def _indexed(spec: ModelSpec) -> list[int]:
    return [layer for layer in range(spec.num_layers) if spec.has_indexer(layer)]


def test_indexers_lie_where_the_release_has_them() -> None:
    """Red when the offset's default is taken: 0, 1, 5, ..., 77 are also 21 layers (MODELS §1.1)."""
    spec = normalise(shapes.GLM_5_3)
    assert _indexed(spec) == [0, 1, *range(2, 78, 4)]
    assert _indexed(spec)[:5] == [0, 1, 2, 6, 10]
    assert _indexed(spec)[-1] == 74
    assert len(_indexed(spec)) == 21
    without = {k: v for k, v in shapes.GLM_5_3.items() if k != "index_skip_topk_offset"}
    assert len(_indexed(normalise(without))) == 21
    assert _indexed(normalise(without)) == [0, *range(1, 78, 4)]


@pytest.mark.parametrize(("name", "layers"), [("DEEPSEEK_V3_2", range(61)), ("GLM_5", range(78))])
def test_without_a_schedule_every_layer_has_an_indexer(name: str, layers: range) -> None:
    """Red when sharing becomes the default."""
    assert _indexed(normalise(shapes.SHAPES[name])) == list(layers)


def test_a_hybrid_has_indexers_on_its_attention_layers() -> None:
    """Red when a recurrent layer counts as one with an indexer, or attention moves to other layers."""
    spec = normalise(shapes.GLM_5_3_FLASH)
    assert _indexed(spec) == list(range(3, 45, 4)) == list(spec.attention_layers)
    assert len(spec.kda_layers) == 34
    assert spec.is_kda(44)
    by_default = deepcopy(shapes.GLM_5_3_FLASH)
    del by_default["text_config"]["layer_types"]
    assert normalise(by_default) == spec


@pytest.mark.parametrize("name", ["GLM_5_3_FLASH_TRANSFORMERS_5", "GLM_5_3_FLASH_TEXT_ONLY"])
def test_every_spelling_of_flash_is_the_same_model(name: str) -> None:
    """Red when flat and nested KDA fields, or nested and flat text configs, are read differently."""
    spec, flash = normalise(shapes.SHAPES[name]), normalise(shapes.GLM_5_3_FLASH)
    assert (spec.kda, spec.hyper, spec.attends, spec.indexed) == (
        flash.kda,
        flash.hyper,
        flash.attends,
        flash.indexed,
    )
    assert (spec.attention, spec.ffns, spec.indexer) == (flash.attention, flash.ffns, flash.indexer)


def test_the_sizes_of_the_parts() -> None:
    """Red when a size, the pairing of an indexer's rope or its pool is taken from elsewhere."""
    v32, glm, flash = (
        normalise(shape) for shape in (shapes.DEEPSEEK_V3_2, shapes.GLM_5_3, shapes.GLM_5_3_FLASH)
    )
    assert v32.indexer == IndexerSpec(64, 128, 2048, 64, interleaved=False)
    assert glm.indexer == IndexerSpec(32, 128, 2048, 64, interleaved=True)
    assert flash.indexer == IndexerSpec(32, 128, 2048, 0, interleaved=False, pool=4)
    assert flash.kda == KDASpec(num_heads=64, head_dim=128, conv_kernel=4, gate_lower_bound=-5.0)
    assert flash.hyper == HyperSpec(streams=4, sinkhorn_iterations=20, eps=1e-6)
    assert (v32.swiglu_limit, glm.swiglu_limit, flash.swiglu_limit) == (None, None, 10.0)


def test_latent_norms_have_the_epsilon_of_the_oracle() -> None:
    """Red when Flash's latent norms get 1e-6, or GLM-5's 1e-5, which transformers does not have (MODELS §2.7)."""
    eps = []
    for shape in (shapes.DEEPSEEK_V3_2, shapes.GLM_5_3, shapes.GLM_5_3_FLASH):
        attention = normalise(shape).attention
        assert isinstance(attention, MLASpec)
        eps.append(attention.latent_eps)
    assert eps == [1e-6, 1e-6, 1e-5]


@pytest.mark.parametrize("name", SPARSE)
def test_transformers_reads_the_same_layers(name: str) -> None:
    """Red when an indexer, a recurrent layer or a size of them is placed or read otherwise than by the oracle."""
    transformers = pytest.importorskip("transformers")
    spec, shape = normalise(shapes.SHAPES[name]), deepcopy(shapes.SHAPES[name])
    shape.pop("quantization_config", None)
    oracle = transformers.AutoConfig.for_model(**shape).get_text_config()
    assert spec.indexer is not None
    assert (spec.indexer.num_heads, spec.indexer.head_dim, spec.indexer.top_k) == (
        oracle.index_n_heads,
        oracle.index_head_dim,
        oracle.index_topk,
    )
    assert spec.indexer.rope_dim == oracle.qk_rope_head_dim
    kinds = oracle.to_dict().get("indexer_types", ["full"] * spec.num_layers)
    for layer, kind in enumerate(kinds):
        assert spec.is_kda(layer) == (oracle.layer_types[layer] == "linear_attention")
        assert spec.has_indexer(layer) == (kind == "full" and not spec.is_kda(layer))
    if spec.kda is not None and spec.hyper is not None:
        assert (spec.kda.num_heads, spec.kda.head_dim, spec.kda.conv_kernel, spec.kda.gate_lower_bound) == (
            oracle.linear_num_heads,
            oracle.linear_head_dim,
            oracle.linear_conv_kernel_dim,
            oracle.linear_lower_bound,
        )
        assert (spec.hyper.streams, spec.hyper.sinkhorn_iterations, spec.hyper.eps) == (
            oracle.hc_mult,
            oracle.hc_sinkhorn_iters,
            oracle.hc_eps,
        )
        assert (spec.indexer.pool, spec.swiglu_limit) == (oracle.index_kpool, oracle.swiglu_limit)


@pytest.mark.parametrize("pattern", ["FFSF", ["full", "full", "shared", "full"]])
def test_a_pattern_is_letters_or_words(pattern: Any) -> None:
    """Red when one of the two spellings of index_topk_pattern is no longer understood."""
    config = {**shapes.GLM_5, "num_hidden_layers": 4, "index_topk_pattern": pattern}
    assert _indexed(normalise(config)) == [0, 1, 3]


def _flash(**text: Any) -> dict[str, Any]:
    return {**shapes.GLM_5_3_FLASH, "text_config": {**shapes.GLM_5_3_FLASH["text_config"], **text}}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({**shapes.GLM_5, "indexer_types": ["full"] * 77}, "indexer_types lists 77 indexers for 78 layers"),
    ({**shapes.GLM_5, "index_topk_pattern": "FS"}, "index_topk_pattern lists 2 indexers for 78 layers"),
    ({**shapes.GLM_5, "indexer_types": ["full"] * 77 + ["hashed"]}, "indexers of type hashed"),
    ({**shapes.GLM_5, "index_topk_pattern": "F" * 77 + "X"}, "indexers of type X"),
    ({**shapes.GLM_5, "indexer_types": ["shared"] + ["full"] * 77}, "layer 0 shares an indexer"),
    ({**shapes.GLM_5, "index_topk": 0}, "index_topk is 0"),
    ({**shapes.GLM_5, "index_head_dim": 32}, "index_head_dim is 32"),
    ({**shapes.GLM_5, "q_lora_rank": None}, "q_lora_rank"),
    ({**shapes.GLM_5, "scoring_func": "softmax"}, "scoring_func"),
    ({**shapes.GLM_5, "topk_method": "greedy"}, "topk_method"),
    ({**shapes.GLM_5, "rope_parameters": {"rope_type": "longrope"}}, "rope type 'longrope'"),
    ({**shapes.GLM_5, "layer_types": ["linear_attention"] * 78}, "layers of type linear_attention"),
    ({**shapes.GLM_5, "attention_bias": True}, "attention_bias"),
    ({**shapes.GLM_5, "mlp_layer_types": ["dense"] * 77}, "mlp_layer_types"),
    (_flash(layer_types=["linear_attention"] * 44 + ["mamba"]), "layers of type mamba"),
    (_flash(layer_types=["linear_attention"] * 3 + ["full_attention"]), "layer_types lists 4 layers of 45"),
    (_flash(layer_types=["linear_attention"] * 45), "no layer with attention"),
    (_flash(qk_rope_head_dim=64), "qk_rope_head_dim is 64"),
    (_flash(index_kpool=3), "a multiple of index_kpool 3"),
    (_flash(index_kpool_always_select_tail=False), "index_kpool_always_select_tail"),
    (_flash(linear_attn_config={"safe_gate": False}), "safe_gate"),
    (_flash(indexer_types=["shared"] * 45), "layer 3 shares an indexer"),
]


@pytest.mark.parametrize(("config", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_is_not_computed_is_refused_by_name(config: dict[str, Any], message: str) -> None:
    """Red when a sparse or hybrid model that means something else is taken, or the error turns vague."""
    with pytest.raises(ConfigError) as caught:
        normalise(config)
    assert message in str(caught.value)
    assert str(caught.value).startswith("config.json")


def test_ranks_must_divide_recurrent_heads_too() -> None:
    """Red when a rank count is taken that would split a recurrent head."""
    spec = normalise(_flash(linear_attn_config={"num_heads": 12}))
    spec.check_ranks(4)
    with pytest.raises(ConfigError, match=r"64 attention heads and 12 recurrent heads .* 8 ranks.* 1, 2, 4$"):
        spec.check_ranks(8)


def test_what_a_layer_caches() -> None:
    """Red when index keys are cached where no indexer is, or a recurrent layer caches anything."""
    glm, flash = normalise(shapes.GLM_5_3), normalise(shapes.GLM_5_3_FLASH)
    assert [field.name for field in glm.layer_kv_fields(2, 8)] == ["latent", "index"]
    assert [field.name for field in glm.layer_kv_fields(3, 8)] == ["latent"]
    assert flash.layer_kv_fields(0, 8) == ()
    latent, index = flash.layer_kv_fields(3, 8)
    assert (latent.width, latent.pool, index.width, index.pool) == (512, 1, 128, 4)


def test_recurrent_state_is_a_sum_over_layers_and_heads() -> None:
    """Red when the state is counted whole on each rank, or not in float32 (MODELS §3.2: 142.6 and 5.0 MB)."""
    flash = normalise(shapes.GLM_5_3_FLASH)
    assert flash.state_bytes(1, 2) == 34 * (64 * 128 * 128 * 4 + 3 * 8192 * 3 * 2)
    assert flash.state_bytes(8, 2) * 8 == flash.state_bytes(1, 2)
    assert flash.state_bytes(1, 2) == pytest.approx(147.6e6, rel=1e-3)
    assert normalise(shapes.GLM_5_3).state_bytes(8, 2) == 0
