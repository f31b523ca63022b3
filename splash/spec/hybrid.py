"""The parts of a hybrid model that are no attention: recurrent layers (KDA) and hyper-connections."""

from __future__ import annotations

from splash.core.errors import ConfigError
from splash.spec.fields import Fields
from splash.spec.model import HyperSpec, KDASpec

LINEAR = "linear_attention"
ATTENTION = ("full_attention", "indexed_attention", "deepseek_sparse_attention")
"""How configs call layers with attention; whether it is sparse is the model type's, as in transformers."""

_EVERY = 4
"""Of so many layers the last attends, if the config does not list them (transformers)."""


def attending_layers(config: Fields) -> tuple[bool, ...]:
    """Which layers have attention, one a layer; the others are recurrent."""
    layers = config.integer("num_hidden_layers")
    kinds = config.items("layer_types")
    if not kinds:
        return tuple(layer % _EVERY == _EVERY - 1 for layer in range(layers))
    if len(kinds) != layers:
        raise ConfigError(f"{config.where}: layer_types lists {len(kinds)} layers of {layers}")
    if LINEAR in kinds and len(set(kinds)) == 1:
        raise ConfigError(f"{config.where}: layer_types has no layer with attention, which is not supported")
    return tuple(kind != LINEAR for kind in kinds)


def read_kda(config: Fields) -> KDASpec:
    """The recurrent layers' sizes: from `linear_attn_config`, or flat as transformers writes them."""
    nested = config.section("linear_attn_config")
    if nested is not None:
        bound = nested.optional_number("gate_lower_bound")
        if bound is None and not nested.flag("safe_gate", default=True):
            raise nested.wrong("safe_gate", expected="true (gates without a lower bound are not supported)")
        return KDASpec(
            num_heads=nested.integer("num_heads", default=64),
            head_dim=nested.integer("head_dim", default=128),
            conv_kernel=nested.integer("short_conv_kernel_size", default=4, minimum=2),
            gate_lower_bound=-5.0 if bound is None else bound,
        )
    return KDASpec(
        num_heads=config.integer("linear_num_heads", default=64),
        head_dim=config.integer("linear_head_dim", default=128),
        conv_kernel=config.integer("linear_conv_kernel_dim", default=4, minimum=2),
        gate_lower_bound=config.number("linear_lower_bound", default=-5.0),
    )


def read_hyper(config: Fields) -> HyperSpec:
    """The residual streams and how they are mixed."""
    return HyperSpec(
        streams=config.integer("hc_mult", default=4),
        sinkhorn_iterations=config.integer("hc_sinkhorn_iters", default=20),
        eps=config.number("hc_eps", default=1e-6),
    )
