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
class KDAWeights:
    """A KDA mixer: this rank's h heads of d dimensions each."""

    project: torch.Tensor
    """[3 * h * d + h + 2 * d, hidden]: q, k, v, beta of the own heads; the inner parts of decay and output gate."""
    f_b: torch.Tensor
    """[h * d, d]"""
    g_b: torch.Tensor
    """[h * d, d]"""
    conv: torch.Tensor
    """[kernel, 3 * h * d] float32, the oldest token's tap first; channels as in `project`."""
    decay: torch.Tensor
    """[h] float32, exp(A_log)"""
    dt_bias: torch.Tensor
    """[h * d] float32"""
    o_norm: torch.Tensor
    """[d] float32"""
    o: torch.Tensor
    """[hidden, h * d]"""


@dataclass(frozen=True, slots=True)
class HyperWeights:
    """What one block's hyper-connection over s streams computes its weights with, float32, whole on every rank.

    The s + s + s * s outputs are collapse, spread and mix.
    """

    fn: torch.Tensor
    """[2 s + s * s, s * hidden]"""
    base: torch.Tensor
    """[2 s + s * s]"""
    scale: torch.Tensor
    """[3], of collapse, spread and mix"""


@dataclass(frozen=True, slots=True)
class LayerWeights:
    attention_norm: torch.Tensor
    """[hidden]"""
    attention: MLAWeights | GQAWeights | KDAWeights
    ffn_norm: torch.Tensor
    """[hidden]"""
    ffn: MLPWeights | MoEWeights
    hyper: tuple[HyperWeights, HyperWeights] | None = None
    """Of the attention and the feed-forward block; None: one stream."""


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
