"""The feed-forward layers that a config asks for: which are dense, and the mixture of the others."""

from __future__ import annotations

from splash.core.errors import ConfigError
from splash.spec.fields import Fields
from splash.spec.model import DenseSpec, MoESpec


def layer_ffns(
    dense: DenseSpec | None, moe: MoESpec | None, is_dense: list[bool]
) -> tuple[DenseSpec | MoESpec, ...]:
    """One a layer."""
    chosen = [dense if here else moe for here in is_dense]
    return tuple(ffn for ffn in chosen if ffn is not None)


def dense_layers(config: Fields, *, first: int) -> list[bool]:
    """Which layers are dense: as `mlp_layer_types` lists them, else the first `first_k_dense_replace` ones.

    `first`: how many, if the config does not say.
    """
    if config.integer("moe_layer_freq", default=1) != 1:
        raise config.wrong("moe_layer_freq", expected="1 (others are not supported)")
    layers = config.integer("num_hidden_layers")
    kinds = config.items("mlp_layer_types")
    if kinds and (len(kinds) != layers or not set(kinds) <= {"dense", "sparse"}):
        raise config.wrong(
            "mlp_layer_types", expected=f"a list of 'dense' and 'sparse', one for each of {layers} layers"
        )
    dense = config.integer("first_k_dense_replace", default=first, minimum=0)
    return [kind == "dense" for kind in kinds] or [layer < dense for layer in range(layers)]


def sigmoid_moe(config: Fields, *, n_group: int, topk_group: int, scaling: float) -> MoESpec:
    """DeepSeek-V3's gating: sigmoid scores, a bias for the choice only, groups (`noaux_tc`)."""
    for key, only in (("scoring_func", "sigmoid"), ("topk_method", "noaux_tc")):
        if config.text(key, default=only) != only:
            raise config.wrong(key, expected=f"{only} (other gatings are not supported)")
    return _checked(
        config,
        MoESpec(
            num_experts=config.integer("n_routed_experts", "num_local_experts", "num_experts"),
            top_k=config.integer("num_experts_per_tok"),
            expert_ffn=config.integer("moe_intermediate_size"),
            num_shared=config.integer("n_shared_experts", default=0, minimum=0),
            scoring="sigmoid",
            norm_topk=config.flag("norm_topk_prob", default=True),
            scaling=config.number("routed_scaling_factor", default=scaling),
            n_group=config.integer("n_group", default=n_group),
            topk_group=config.integer("topk_group", default=topk_group),
            correction_bias=True,
        ),
    )


def softmax_moe(config: Fields, experts: int) -> MoESpec:
    """Qwen3's gating."""
    return _checked(
        config,
        MoESpec(
            num_experts=experts,
            top_k=config.integer("num_experts_per_tok", default=8),
            expert_ffn=config.integer("moe_intermediate_size"),
            num_shared=0,
            scoring="softmax",
            norm_topk=config.flag("norm_topk_prob", default=False),
            scaling=1.0,
        ),
    )


def _checked(config: Fields, moe: MoESpec) -> MoESpec:
    """`moe` if its numbers fit each other."""
    size, rest = divmod(moe.num_experts, moe.n_group)
    if rest or moe.topk_group > moe.n_group or (moe.correction_bias and size < 2):
        raise ConfigError(
            f"{config.where}: {moe.num_experts} experts do not make {moe.n_group} groups (n_group) of at least two,"
            f" of which {moe.topk_group} (topk_group) are kept"
        )
    if moe.top_k > size * moe.topk_group:
        raise ConfigError(
            f"{config.where}: num_experts_per_tok {moe.top_k} exceeds the {size * moe.topk_group} experts it may choose"
        )
    return moe
