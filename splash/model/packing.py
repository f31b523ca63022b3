"""The weights that stay in their place, brought into the memory order in which they are multiplied by."""

from __future__ import annotations

from dataclasses import replace

from splash.model.attention.weights import GQAWeights, MLAWeights
from splash.model.layers.linear import packed
from splash.model.weights import LayerWeights, MLPWeights, MoEWeights, RankWeights


def packed_weights(weights: RankWeights) -> RankWeights:
    """The same tree with the same values and shapes. The embedding is looked up by rows and keeps its order."""
    layers = tuple(_layer(layer) for layer in weights.layers)
    return replace(weights, head=packed(weights.head), layers=layers)


def _layer(layer: LayerWeights) -> LayerWeights:
    return replace(layer, attention=_attention(layer.attention), ffn=_ffn(layer.ffn))


def _attention(weights: MLAWeights | GQAWeights) -> MLAWeights | GQAWeights:
    return replace(weights, a=packed(weights.a)) if isinstance(weights, MLAWeights) else weights


def _ffn(weights: MLPWeights | MoEWeights) -> MLPWeights | MoEWeights:
    if isinstance(weights, MLPWeights):
        return _mlp(weights)
    return replace(
        weights,
        gate_up=packed(weights.gate_up),
        down=packed(weights.down),
        shared=None if weights.shared is None else _mlp(weights.shared),
    )


def _mlp(weights: MLPWeights) -> MLPWeights:
    return MLPWeights(packed(weights.gate_up), packed(weights.down))
