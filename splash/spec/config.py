"""`normalise`: every shape of a Hugging Face config.json becomes one `ModelSpec`.

Defaults of absent keys are those of transformers' config classes. A config that asks for something which is not
computed here is refused by name: a model that is almost right is worse than none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from splash.core.errors import ConfigError
from splash.spec.fields import Fields
from splash.spec.hybrid import ATTENTION, LINEAR, attending_layers, read_hyper, read_kda
from splash.spec.indexer import indexed_layers, read_indexer
from splash.spec.model import ITEMSIZE, DenseSpec, GQASpec, MLASpec, ModelSpec, MoESpec, RopeSpec
from splash.spec.moe import dense_layers, layer_ffns, sigmoid_moe, softmax_moe
from splash.spec.rope import read_rope, yarn_mscale

LATENT_EPS = 1e-6
"""transformers' latent norms have this epsilon whatever rms_norm_eps says, in all model types but glm5_next."""

_NESTED = ("text_config", "language_config", "llm_config")
_ALIASES = {"glm5_next_text": "glm5_next"}
"""How the language model of a multimodal config calls itself."""
_LAYER_TYPES: Mapping[str, tuple[str, ...]] = {
    "deepseek_v32": ATTENTION,
    "glm_moe_dsa": ATTENTION,
    "glm5_next": (*ATTENTION, LINEAR),
}
"""The `layer_types` of model types that know more than full attention."""


def normalise(config: object, *, where: str = "config.json") -> ModelSpec:
    """The model that `config` (a parsed config.json) describes.

    ConfigError names the key in question, or lists the supported model types. `where` opens its message.
    """
    if not isinstance(config, Mapping):
        kind = (
            "a string; store the object itself, not JSON within JSON"
            if isinstance(config, str)
            else "no object"
        )
        raise ConfigError(f"{where} holds {kind}")
    fields = _text_model(Fields(config, where))
    model_type = _model_type(fields)
    if model_type not in _NORMALISERS:
        found = f"model type '{model_type}' is not supported" if model_type else "there is no model_type"
        raise ConfigError(f"{fields.where}: {found}; supported: {', '.join(supported_model_types())}")
    known = _LAYER_TYPES.get(model_type, ("full_attention",))
    odd = sorted({str(kind) for kind in fields.items("layer_types")} - set(known))
    if odd:
        raise ConfigError(
            f"{fields.where}: layers of type {', '.join(odd)} are not supported in {model_type}"
        )
    return _NORMALISERS[model_type](fields)


def supported_model_types() -> tuple[str, ...]:
    return tuple(sorted(_NORMALISERS))


def _text_model(config: Fields) -> Fields:
    """The fields of the language model, which a multimodal config nests."""
    nested = config.section(*_NESTED)
    return config if nested is None else config.merged(nested)


def _model_type(config: Fields) -> str:
    name = config.text("model_type", default="")
    return _ALIASES.get(name, name)


def _deepseek_v3(config: Fields) -> ModelSpec:
    moe = sigmoid_moe(config, n_group=8, topk_group=4, scaling=2.5)
    return _mla_model(config, moe, is_dense=dense_layers(config, first=3), eps=1e-6)


def _glm4_moe_lite(config: Fields) -> ModelSpec:
    moe = sigmoid_moe(config, n_group=1, topk_group=1, scaling=1.8)
    return _mla_model(config, moe, is_dense=dense_layers(config, first=1), eps=1e-5)


def _deepseek_v32(config: Fields) -> ModelSpec:
    moe = sigmoid_moe(config, n_group=8, topk_group=4, scaling=2.5)
    model = _mla_model(config, moe, is_dense=dense_layers(config, first=3), eps=1e-6, max_position=163_840)
    return _sparse(config, model, heads=64, interleaved=False)


def _glm_moe_dsa(config: Fields) -> ModelSpec:
    moe = sigmoid_moe(config, n_group=1, topk_group=1, scaling=2.5)
    model = _mla_model(config, moe, is_dense=dense_layers(config, first=3), eps=1e-5, max_position=202_752)
    return _sparse(config, model, heads=32, interleaved=True)


def _glm5_next(config: Fields) -> ModelSpec:
    """GLM-5.3-Flash's text part: KDA and latent attention without rope, in four residual streams."""
    if config.integer("qk_rope_head_dim", default=0, minimum=0):
        raise config.wrong("qk_rope_head_dim", expected="0 (this model type has no rope)")
    moe = sigmoid_moe(config, n_group=1, topk_group=1, scaling=2.5)
    model = _mla_model(
        config,
        moe,
        is_dense=dense_layers(config, first=3),
        eps=1e-5,
        latent_eps=config.number("rms_norm_eps", default=1e-5),
        rope_dim=0,
        max_position=1_048_576,
    )
    attends = attending_layers(config)
    model = replace(
        model,
        attends=attends,
        kda=read_kda(config),
        hyper=read_hyper(config),
        swiglu_limit=config.number("swiglu_limit", default=10.0),
    )
    return _sparse(config, model, heads=32, interleaved=False, pool=config.integer("index_kpool", default=16))


def _sparse(config: Fields, model: ModelSpec, *, heads: int, interleaved: bool, pool: int = 1) -> ModelSpec:
    """`model` with the indexers that its config asks for."""
    attention = model.attention
    assert isinstance(attention, MLASpec)
    if attention.q_lora_rank is None:
        raise config.missing("q_lora_rank")
    indexer = read_indexer(
        config, heads=heads, rope_dim=attention.rope_dim, interleaved=interleaved, pool=pool
    )
    attends = [not model.is_kda(layer) for layer in range(model.num_layers)]
    return replace(model, indexer=indexer, indexed=indexed_layers(config, attends))


def _llama(config: Fields) -> ModelSpec:
    heads = config.integer("num_attention_heads")
    if config.flag("mlp_bias", default=False):
        raise config.wrong("mlp_bias", expected="false (MLPs with biases are not supported)")
    dense = DenseSpec(config.integer("intermediate_size"))
    return _gqa_model(
        config,
        ffns=(dense,) * config.integer("num_hidden_layers"),
        num_kv_heads=config.integer("num_key_value_heads", default=heads),
        qk_norm=False,
        eps=1e-6,
    )


def _qwen3_moe(config: Fields) -> ModelSpec:
    if config.flag("use_sliding_window", default=False):
        raise config.wrong("use_sliding_window", expected="false (sliding windows are not supported)")
    layers = config.integer("num_hidden_layers")
    experts = config.integer("num_experts", "num_local_experts", default=128, minimum=0)
    dense_only = set(config.items("mlp_only_layers"))
    sparse_step = config.integer("decoder_sparse_step", default=1)
    sparse = [
        experts > 0 and layer not in dense_only and (layer + 1) % sparse_step == 0 for layer in range(layers)
    ]
    moe = softmax_moe(config, experts) if any(sparse) else None
    dense = None if all(sparse) else DenseSpec(config.integer("intermediate_size"))
    return _gqa_model(
        config,
        ffns=layer_ffns(dense, moe, [not is_sparse for is_sparse in sparse]),
        num_kv_heads=config.integer("num_key_value_heads", default=config.integer("num_attention_heads")),
        qk_norm=True,
        eps=1e-6,
    )


_NORMALISERS: Mapping[str, Callable[[Fields], ModelSpec]] = {
    "deepseek_v3": _deepseek_v3,
    "deepseek_v32": _deepseek_v32,
    "glm5_next": _glm5_next,
    "glm_moe_dsa": _glm_moe_dsa,
    "glm4_moe_lite": _glm4_moe_lite,
    "llama": _llama,
    "qwen3_moe": _qwen3_moe,
}


def _mla_model(
    config: Fields,
    moe: MoESpec,
    *,
    is_dense: list[bool],
    eps: float,
    latent_eps: float = LATENT_EPS,
    rope_dim: int = 64,
    max_position: int = 4096,
) -> ModelSpec:
    """Latent attention in all layers. `eps`, `rope_dim` and `max_position` count where the config has none."""
    if config.flag("attention_bias", default=False):
        raise config.wrong("attention_bias", expected="false (latent attention with biases is not supported)")
    nope = config.integer("qk_nope_head_dim", default=128)
    rope_dim = config.integer("qk_rope_head_dim", default=rope_dim, minimum=0)
    max_position = config.integer("max_position_embeddings", default=max_position)
    interleaved = config.flag("rope_interleave", default=True)
    rope = read_rope(config, dim=rope_dim, interleaved=interleaved, max_position=max_position)
    attention = MLASpec(
        num_heads=config.integer("num_attention_heads"),
        q_lora_rank=config.optional_integer("q_lora_rank"),
        kv_lora_rank=config.integer("kv_lora_rank"),
        nope_dim=nope,
        rope_dim=rope_dim,
        v_dim=config.integer("v_head_dim", default=nope),
        latent_eps=latent_eps,
        softmax_scale=_mla_softmax_scale(nope + rope_dim, rope),
    )
    dense = DenseSpec(config.integer("intermediate_size")) if any(is_dense) else None
    return _model(
        config, attention, rope, layer_ffns(dense, moe, is_dense), eps=eps, max_position=max_position
    )


def _mla_softmax_scale(head_dim: int, rope: RopeSpec) -> float:
    """head_dim ** -0.5, times the square of yarn's mscale where `mscale_all_dim` is set (transformers, DeepSeek)."""
    mscale = yarn_mscale(rope.factor, rope.mscale_all_dim) if rope.mscale_all_dim else 1.0
    return float(head_dim**-0.5 * mscale * mscale)


def _gqa_model(
    config: Fields, *, ffns: tuple[DenseSpec | MoESpec, ...], num_kv_heads: int, qk_norm: bool, eps: float
) -> ModelSpec:
    heads, hidden = config.integer("num_attention_heads"), config.integer("hidden_size")
    head_dim = config.optional_integer("head_dim")
    if head_dim is None and hidden % heads:
        raise ConfigError(f"{config.where}: {heads} heads do not divide hidden_size {hidden}; give head_dim")
    head_dim = head_dim or hidden // heads
    if heads % num_kv_heads:
        raise ConfigError(
            f"{config.where}: num_key_value_heads {num_kv_heads} does not divide num_attention_heads {heads}"
        )
    max_position = config.integer("max_position_embeddings", default=2048)
    rope = read_rope(config, dim=head_dim, interleaved=False, max_position=max_position)
    attention = GQASpec(
        num_heads=heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        softmax_scale=head_dim**-0.5,
        qk_norm=qk_norm,
        bias=config.flag("attention_bias", default=False),
    )
    return _model(config, attention, rope, ffns, eps=eps, max_position=max_position)


def _model(
    config: Fields,
    attention: MLASpec | GQASpec,
    rope: RopeSpec,
    ffns: tuple[DenseSpec | MoESpec, ...],
    *,
    eps: float,
    max_position: int,
) -> ModelSpec:
    """What all model types have in common. `eps`: the norm's epsilon if the config has none."""
    activation = config.text("hidden_act", default="silu")
    if activation not in ("silu", "swish"):
        raise config.wrong("hidden_act", expected="silu (other activations are not supported)")
    return ModelSpec(
        model_type=_model_type(config),
        vocab_size=config.integer("vocab_size"),
        hidden_size=config.integer("hidden_size"),
        attention=attention,
        rope=rope,
        ffns=ffns,
        norm_eps=config.number("rms_norm_eps", default=eps),
        tied_embeddings=config.flag("tie_word_embeddings", default=False),
        max_position=max_position,
        eos_token_ids=token_ids(config, "eos_token_id"),
        checkpoint_dtype=_dtype(config),
        mtp_layers=config.integer("num_nextn_predict_layers", "num_mtp_layers", default=0, minimum=0),
    )


def token_ids(config: Fields, key: str) -> tuple[int, ...]:
    """Token ids that a config gives as a number, a list or not at all."""
    value = config.raw(key)
    ids = value if isinstance(value, (list, tuple)) else () if value is None else (value,)
    if not all(isinstance(token, int) and not isinstance(token, bool) and token >= 0 for token in ids):
        raise config.wrong(key, expected="a token id or a list of token ids")
    return tuple(ids)


def _dtype(config: Fields) -> str:
    name = config.text("dtype", "torch_dtype", default="float32").removeprefix("torch.")
    if name not in ITEMSIZE:
        raise config.wrong("dtype", "torch_dtype", expected=f"one of {', '.join(ITEMSIZE)}")
    return name
