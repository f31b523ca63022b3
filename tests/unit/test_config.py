"""`spec.config.normalise` over the shapes in which config.json is met, and by name what it refuses."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from splash.core.errors import ConfigError
from splash.spec.config import normalise, supported_model_types
from splash.spec.model import DenseSpec, GQASpec, MLASpec, ModelSpec, MoESpec
from splash.spec.tensors import Division, model_tensors, num_params, rank_params
from tests.unit import config_shapes as shapes
from tests.unit.config_shapes import SHAPES

EXPECTED: dict[str, dict[str, Any]] = {
    "DEEPSEEK_V3": {
        "scale": 0.135234,
        "rope": ("yarn", 64, 1e4, 40.0, 4096, True),
        "dense": 3,
        "params": 671.03e9,
        "dtype": "bfloat16",
        "eos": (1,),
    },
    "DEEPSEEK_V3_TRANSFORMERS_5": {
        "scale": 0.135234,
        "rope": ("yarn", 64, 1e4, 40.0, 4096, True),
        "dense": 3,
    },
    "KIMI_K2": {
        "scale": 0.130862,
        "rope": ("yarn", 64, 5e4, 32.0, 4096, True),
        "dense": 1,
        "params": 1026.4e9,
    },
    "MOONLIGHT": {
        "scale": 192**-0.5,
        "rope": ("default", 64, 5e4, 1.0, 0, True),
        "dense": 1,
        "params": 15.96e9,
        "q_lora": None,
    },
    "GLM_4_7_FLASH": {
        "scale": 0.0625,
        "rope": ("default", 64, 1e6, 1.0, 0, True),
        "dense": 1,
        "params": 29.94e9,
        "eos": (154820, 154827, 154829),
    },
    "GLM_4_7_FLASH_TRANSFORMERS_5": {"scale": 0.0625, "rope": ("default", 64, 1e6, 1.0, 0, True), "dense": 1},
    "LLAMA_1_7B": {
        "kv_heads": 32,
        "head_dim": 128,
        "rope": ("default", 128, 1e4, 1.0, 0, False),
        "max": 2048,
        "params": 6.738e9,
        "dtype": "float16",
    },
    "LLAMA_2_70B": {
        "kv_heads": 8,
        "head_dim": 128,
        "rope": ("default", 128, 1e4, 1.0, 0, False),
        "params": 68.98e9,
    },
    "LLAMA_3_8B": {
        "kv_heads": 8,
        "rope": ("default", 128, 5e5, 1.0, 0, False),
        "params": 8.03e9,
        "eos": (128001,),
    },
    "LLAMA_3_1_8B": {"rope": ("llama3", 128, 5e5, 8.0, 8192, False), "eos": (128001, 128008, 128009)},
    "LLAMA_3_1_405B": {"kv_heads": 8, "head_dim": 128, "params": 405.85e9},
    "LLAMA_3_2_1B": {
        "head_dim": 64,
        "rope": ("llama3", 64, 5e5, 32.0, 8192, False),
        "params": 1.2358e9,
        "tied": True,
    },
    "LLAMA_3_1_TRANSFORMERS_5": {"rope": ("llama3", 128, 5e5, 8.0, 8192, False), "dtype": "bfloat16"},
    "LLAMA_HEAD_DIM_NULL": {"head_dim": 128, "kv_heads": 32},
    "LLAMA_LINEAR": {"rope": ("linear", 128, 1e4, 4.0, 0, False)},
    "LLAMA_DYNAMIC": {"rope": ("default", 128, 1e4, 1.0, 0, False)},
    "LLAMA_YARN": {
        "rope": ("yarn", 128, 1e4, 16.0, 4096, False),
        "scale": 128**-0.5,
        "attention_factor": 1.277259,
    },
    "LLAMA_BIAS": {"bias": True},
    "LLAMA_MROPE": {"rope": ("default", 128, 5e5, 1.0, 0, False)},
    "LLAVA": {"type": "llama", "vocab": 128320, "kv_heads": 8, "dtype": "bfloat16"},
    "QWEN3_30B_A3B": {
        "kv_heads": 4,
        "head_dim": 128,
        "rope": ("default", 128, 1e6, 1.0, 0, False),
        "dense": 0,
        "params": 30.53e9,
        "qk_norm": True,
    },
    "QWEN3_235B_A22B": {"kv_heads": 4, "params": 235.09e9, "dense": 0},
    "QWEN3_YARN": {"rope": ("yarn", 128, 1e6, 4.0, 32768, False), "attention_factor": 1.138629},
    "QWEN3_YARN_NO_FACTOR": {"rope": ("yarn", 128, 1e6, 4.0, 32768, False), "max": 131072},
    "QWEN3_SOME_DENSE": {"dense": 26},
    "QWEN3_TRANSFORMERS_5": {"rope": ("default", 128, 1e6, 1.0, 0, False), "dense": 0, "params": 30.53e9},
    "DEEPSEEK_V3_2": {
        "scale": 0.135234,
        "rope": ("yarn", 64, 1e4, 40.0, 4096, True),
        "dense": 3,
        "params": 671.88e9,
        "mtp": 1,
    },
    "DEEPSEEK_V3_2_TRANSFORMERS_5": {
        "scale": 0.135234,
        "rope": ("yarn", 64, 1e4, 40.0, 4096, True),
        "dense": 3,
    },
    "GLM_5": {"scale": 0.0625, "rope": ("default", 64, 1e6, 1.0, 0, True), "dense": 3, "params": 743.91e9},
    "GLM_5_3": {
        "scale": 0.0625,
        "rope": ("default", 64, 8e6, 1.0, 0, True),
        "dense": 3,
        "params": 743.38e9,
        "max": 1048576,
        "eos": (154820, 154827, 154829),
        "mtp": 1,
    },
    "GLM_5_3_FLASH": {
        "type": "glm5_next",
        "scale": 0.0625,
        "rope": ("default", 0, 1e4, 1.0, 0, True),
        "dense": 3,
        "params": 313.33e9,
        "eos": (154820, 154827, 154829),
        "mtp": 1,
    },
    "GLM_5_3_FLASH_TRANSFORMERS_5": {"type": "glm5_next", "scale": 0.0625, "params": 313.33e9},
    "GLM_5_3_FLASH_TEXT_ONLY": {"type": "glm5_next", "scale": 0.0625, "params": 313.33e9},
}


def _facts(spec: ModelSpec) -> dict[str, Any]:
    rope, attention = spec.rope, spec.attention
    facts = {
        "type": spec.model_type,
        "vocab": spec.vocab_size,
        "scale": attention.softmax_scale,
        "rope": (
            rope.kind,
            rope.dim,
            rope.theta,
            rope.factor,
            rope.original_max_position,
            rope.interleaved,
        ),
        "attention_factor": rope.attention_factor,
        "dense": sum(isinstance(ffn, DenseSpec) for ffn in spec.ffns),
        "params": num_params(spec),
        "dtype": spec.checkpoint_dtype,
        "eos": spec.eos_token_ids,
        "max": spec.max_position,
        "tied": spec.tied_embeddings,
        "mtp": spec.mtp_layers,
    }
    if isinstance(attention, MLASpec):
        return facts | {"q_lora": attention.q_lora_rank}
    return facts | {
        "kv_heads": attention.num_kv_heads,
        "head_dim": attention.head_dim,
        "bias": attention.bias,
        "qk_norm": attention.qk_norm,
    }


def test_the_table_is_complete() -> None:
    """Red when a shape is added without saying what must come of it."""
    assert set(EXPECTED) == set(SHAPES)


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_gives_the_model_it_means(name: str) -> None:
    """Red when a spelling of a key is no longer understood, or a size or scale derived from it changes."""
    facts = _facts(normalise(SHAPES[name]))
    for fact, expected in EXPECTED[name].items():
        if isinstance(expected, float) and fact == "params":
            assert facts[fact] == pytest.approx(expected, rel=1e-3), fact
        elif isinstance(expected, float):
            assert facts[fact] == pytest.approx(expected, rel=1e-5), fact
        else:
            assert facts[fact] == expected, fact


def _oracle(config: dict[str, Any]) -> Any:
    """transformers' view of the language model's config."""
    import transformers

    transformers.logging.set_verbosity_error()
    own = {key: value for key, value in deepcopy(config).items() if key != "quantization_config"}
    return transformers.AutoConfig.for_model(**own).get_text_config()


@pytest.mark.parametrize("name", [name for name in SHAPES if name != "QWEN3_YARN_NO_FACTOR"])
def test_transformers_reads_the_same(name: str) -> None:
    """Red when sizes, rope, scales or epsilons differ from what the oracle takes from the same file."""
    pytest.importorskip("transformers")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import yarn_apply_mscale

    spec, oracle = normalise(SHAPES[name]), _oracle(SHAPES[name])
    assert spec.hidden_size == oracle.hidden_size
    assert spec.vocab_size == oracle.vocab_size
    assert spec.num_layers == oracle.num_hidden_layers
    assert spec.norm_eps == oracle.rms_norm_eps
    if spec.rope.dim == 0:
        return
    rope = oracle.rope_parameters
    assert spec.rope.theta == rope["rope_theta"]
    if rope["rope_type"] in ROPE_INIT_FUNCTIONS:
        _, factor = ROPE_INIT_FUNCTIONS[rope["rope_type"]](oracle)
        assert (spec.rope.attention_factor or 1.0) == pytest.approx(factor)
    if isinstance(spec.attention, MLASpec):
        scale = yarn_apply_mscale(rope, (oracle.qk_nope_head_dim + oracle.qk_rope_head_dim) ** -0.5)
        assert spec.attention.softmax_scale == pytest.approx(scale)
        assert spec.rope.interleaved == oracle.to_dict().get("rope_interleave", True)
    else:
        assert spec.attention.head_dim == oracle.head_dim
        assert spec.attention.num_kv_heads == oracle.num_key_value_heads


def test_mla_latent_norms_have_their_own_epsilon() -> None:
    """Red when the latent norms follow rms_norm_eps, which transformers' do not (MODELS §2.7)."""
    spec = normalise(shapes.GLM_4_7_FLASH)
    assert isinstance(spec.attention, MLASpec)
    assert (spec.norm_eps, spec.attention.latent_eps) == (1e-5, 1e-6)


def test_moe_of_both_gatings() -> None:
    """Red when a gating's numbers are mixed up."""
    deepseek, qwen = (normalise(shape).ffns[-1] for shape in (shapes.DEEPSEEK_V3, shapes.QWEN3_30B_A3B))
    assert deepseek == MoESpec(256, 8, 2048, 1, "sigmoid", True, 2.5, 8, 4, True)
    assert qwen == MoESpec(128, 8, 768, 0, "softmax", True, 1.0)


def test_which_layers_are_dense() -> None:
    """Red when the rule that places dense layers changes for one of the model types."""
    sparse_step = normalise(shapes.QWEN3_SOME_DENSE)
    moe = [layer for layer, ffn in enumerate(sparse_step.ffns) if isinstance(ffn, MoESpec)]
    assert moe == [layer for layer in range(1, 48, 2) if layer not in (1, 3)]
    glm = normalise({**shapes.GLM_4_7_FLASH, "mlp_layer_types": ["sparse"] * 46 + ["dense"]})
    assert [isinstance(ffn, DenseSpec) for ffn in glm.ffns] == [False] * 46 + [True]


REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {**shapes.LLAMA_3_8B, "model_type": "mamba2"},
        "'mamba2' is not supported; supported: deepseek_v3, deepseek_v32, glm4_moe_lite, glm5_next, glm_moe_dsa",
    ),
    ({k: v for k, v in shapes.LLAMA_3_8B.items() if k != "model_type"}, "no model_type"),
    ({**shapes.LLAMA_3_8B, "rope_scaling": {"type": "longrope", "factor": 2.0}}, "rope type 'longrope'"),
    ({**shapes.LLAMA_3_8B, "rope_scaling": {"type": "linear"}}, "rope_scaling has no factor"),
    ({**shapes.LLAMA_3_8B, "rope_scaling": {"factor": 2.0}}, "has no rope_type"),
    ({**shapes.LLAMA_3_8B, "rope_scaling": '{"type": "linear", "factor": 2.0}'}, "without the quotes"),
    ({**shapes.LLAMA_3_8B, "rope_scaling": {"type": "linear", "factor": "2.0"}}, "without the quotes"),
    ({**shapes.LLAMA_3_8B, "partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
    ({**shapes.LLAMA_3_8B, "hidden_size": "4096"}, "hidden_size is the string '4096'"),
    ({**shapes.LLAMA_3_8B, "hidden_size": None}, "no hidden_size"),
    ({**shapes.LLAMA_3_8B, "hidden_act": "gelu"}, "hidden_act is the string 'gelu'"),
    ({**shapes.LLAMA_3_8B, "num_key_value_heads": 5}, "does not divide"),
    ({**shapes.LLAMA_3_8B, "hidden_size": 4100}, "give head_dim"),
    ({**shapes.LLAMA_3_8B, "mlp_bias": True}, "mlp_bias"),
    ({**shapes.LLAMA_3_8B, "layer_types": ["sliding_attention"] * 32}, "sliding_attention"),
    ({**shapes.LLAMA_3_8B, "eos_token_id": "</s>"}, "eos_token_id"),
    ({**shapes.LLAMA_3_8B, "torch_dtype": "float8_e4m3fn"}, "one of float32, bfloat16"),
    ({**shapes.QWEN3_30B_A3B, "use_sliding_window": True}, "use_sliding_window"),
    ({**shapes.QWEN3_30B_A3B, "num_experts_per_tok": 200}, "num_experts_per_tok 200"),
    ({**shapes.DEEPSEEK_V3, "scoring_func": "softmax"}, "scoring_func"),
    ({**shapes.DEEPSEEK_V3, "topk_method": "group_limited_greedy"}, "topk_method"),
    ({**shapes.DEEPSEEK_V3, "moe_layer_freq": 2}, "moe_layer_freq"),
    ({**shapes.DEEPSEEK_V3, "n_group": 7}, "256 experts do not make 7 groups"),
    ({**shapes.DEEPSEEK_V3, "attention_bias": True}, "attention_bias"),
    ({**shapes.GLM_4_7_FLASH, "mlp_layer_types": ["dense"]}, "mlp_layer_types"),
    ({**shapes.LLAVA, "text_config": "llama"}, "text_config is the string"),
]


@pytest.mark.parametrize(("config", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_is_not_computed_is_refused_by_name(config: dict[str, Any], message: str) -> None:
    """Red when a config that means something else is served as if it did not, or the error turns vague."""
    with pytest.raises(ConfigError) as caught:
        normalise(config)
    assert message in str(caught.value)
    assert str(caught.value).startswith("config.json")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("config", ['{"model_type": "llama"}', ["llama"], None])
def test_no_object_is_refused(config: object) -> None:
    """Red when JSON within JSON ends in a traceback."""
    with pytest.raises(ConfigError):
        normalise(config)


def test_every_supported_type_is_in_the_table() -> None:
    """Red when a model type is added without a real config of it."""
    assert {normalise(shape).model_type for shape in SHAPES.values()} == set(supported_model_types())


@pytest.mark.parametrize(
    "name", ["DEEPSEEK_V3", "MOONLIGHT", "LLAMA_3_2_1B", "QWEN3_SOME_DENSE", "LLAMA_BIAS"]
)
@pytest.mark.parametrize("ranks", [1, 4, 16])
def test_ranks_together_hold_every_parameter(name: str, ranks: int) -> None:
    """Red when a tensor is divided twice or not at all; KV heads fewer than ranks are held more than once."""
    spec = normalise(SHAPES[name])
    held = [rank_params(spec, rank=rank, ranks=ranks) for rank in range(ranks)]
    logical = dict.fromkeys(Division, 0)
    for tensor in model_tensors(spec):
        logical[tensor.division] += tensor.num_params
    for division in Division:
        copies = ranks if division in (Division.NONE, Division.ROUTER) else 1
        total = sum(counts[division] for counts in held)
        if division is Division.HEADS and isinstance(spec.attention, GQASpec):
            attention = spec.attention
            extra = max(0, ranks - attention.num_kv_heads) * attention.head_dim * 2
            total -= extra * (spec.hidden_size + attention.bias) * spec.num_layers
        assert total == copies * logical[division], division
