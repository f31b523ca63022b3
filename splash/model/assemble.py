"""One rank's decoder, put together from its weights, the views of its slots and the views of its pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from splash.hal.protocol import Attention, Communicator
from splash.layout.holders import Topology
from splash.model.attention.gqa import GQAProjection
from splash.model.attention.mla import MLAProjection
from splash.model.attention.pipeline import AttentionPipeline, LayerPages
from splash.model.attention.projection import Projection
from splash.model.attention.weights import GQAShard, GQAWeights, MLAShard, MLAWeights
from splash.model.decoder import Decoder, FeedForward, Layer
from splash.model.layers.linear import packed
from splash.model.layers.mlp import MLP
from splash.model.layers.moe import MoE, Router
from splash.model.layers.vocab import Embedding, Head
from splash.model.weights import MLPWeights, MoEWeights, RankWeights
from splash.spec.model import GQASpec, MLASpec, ModelSpec, MoESpec


def assemble(
    *,
    spec: ModelSpec,
    weights: RankWeights,
    shards: Sequence[Sequence[MLAShard | GQAShard]],
    fields: Sequence[tuple[torch.Tensor, ...]],
    comm: Communicator,
    attention: Attention,
    topo: Topology,
) -> Decoder:
    """`shards[layer][j]` is head shard j, `fields[layer]` are the fields of this rank's pages."""
    layers = []
    for index, layer in enumerate(weights.layers):
        projection = _projection(spec, layer.attention, shards[index], comm.rank, topo)
        pipeline = AttentionPipeline(
            projection=projection,
            pages=LayerPages(fields[index], projection.paged(fields[index])),
            comm=comm,
            attention=attention,
            topo=topo,
            scale=spec.attention.softmax_scale,
        )
        ffn = _feed_forward(spec.ffns[index], layer.ffn)
        layers.append(Layer(layer.attention_norm, pipeline, layer.ffn_norm, ffn))
    return Decoder(
        embedding=Embedding(weights.embed, weights.first_token),
        layers=layers,
        norm=weights.final_norm,
        head=Head(packed(weights.head), weights.first_token),
        norm_eps=spec.norm_eps,
        comm=comm,
    )


def _projection(
    spec: ModelSpec, weights: MLAWeights | GQAWeights, shards: Sequence[Any], rank: int, topo: Topology
) -> Projection:
    if isinstance(weights, MLAWeights):
        assert isinstance(spec.attention, MLASpec)
        return MLAProjection(spec.attention, replace(weights, a=packed(weights.a)), shards, rank)
    assert isinstance(spec.attention, GQASpec)
    return GQAProjection(spec.attention, weights, shards, rank, topo, spec.norm_eps)


def _feed_forward(spec: Any, weights: MLPWeights | MoEWeights) -> FeedForward:
    if isinstance(weights, MLPWeights):
        return _mlp(weights)
    assert isinstance(spec, MoESpec)
    return MoE(
        Router(spec, weights.router, weights.router_bias),
        packed(weights.gate_up),
        packed(weights.down),
        first=weights.first,
        shared=None if weights.shared is None else _mlp(weights.shared),
    )


def _mlp(weights: MLPWeights) -> MLP:
    return MLP(packed(weights.gate_up), packed(weights.down))
