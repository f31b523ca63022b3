"""The weights that stay on a rank for ever, as one tree. Switchable attention shards lie in the pool's slots.

Linear weights are [out, in]. `T` ranks divide widths, experts and vocabulary by `spec.tensors.portion`, evenly or not.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from splash.model.attention.weights import GQAWeights, MLAWeights


@dataclass(frozen=True, slots=True)
class MLPWeights:
    """A gated MLP, or this rank's `f` of its rows."""

    gate_up: torch.Tensor
    """[2 * f, hidden]: f gate rows, then the same f up rows."""
    down: torch.Tensor
    """[hidden, f]"""


@dataclass(frozen=True, slots=True)
class MoEWeights:
    """A mixture of experts: the whole router, the routed experts [first, first + n) and a part of the shared ones."""

    router: torch.Tensor
    """[experts, hidden] float32"""
    router_bias: torch.Tensor | None
    """[experts] float32, added for the choice only."""
    first: int
    gate_up: torch.Tensor
    """[n, 2 * expert_ffn, hidden], gate first."""
    down: torch.Tensor
    """[n, hidden, expert_ffn]"""
    shared: MLPWeights | None


@dataclass(frozen=True, slots=True)
class LayerWeights:
    attention_norm: torch.Tensor
    """[hidden]"""
    attention: MLAWeights | GQAWeights
    ffn_norm: torch.Tensor
    """[hidden]"""
    ffn: MLPWeights | MoEWeights


@dataclass(frozen=True, slots=True)
class RankWeights:
    """Everything but the head shards.

    `embed` and `head` [rows, hidden] are of tokens [first_token, first_token + rows); tied, they are one tensor.
    """

    embed: torch.Tensor
    head: torch.Tensor
    first_token: int
    final_norm: torch.Tensor
    layers: tuple[LayerWeights, ...]
