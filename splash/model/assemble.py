"""One rank's decoder, put together from its weights, the views of its slots and the views of its pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from splash.hal.protocol import Attention, Communicator
from splash.layout.holders import Topology
from splash.model.attention.gqa import GQAProjection
from splash.model.attention.indexer import Indexer
from splash.model.attention.mla import MLAProjection
from splash.model.attention.pipeline import AttentionPipeline, LayerPages
from splash.model.attention.pooling import Pooling
from splash.model.attention.projection import Projection
from splash.model.attention.rows import AttentionRows
from splash.model.attention.selection import Selection
from splash.model.attention.weights import GQAShard, GQAWeights, MLAShard, MLAWeights
from splash.model.decoder import Decoder, FeedForward, Layer, Mixer
from splash.model.layers.hyper import HyperConnection, Residual, added
from splash.model.layers.kda import KDA
from splash.model.layers.linear import packed
from splash.model.layers.mlp import MLP
from splash.model.layers.moe import MoE, Router
from splash.model.layers.norm import RMSNorm
from splash.model.layers.vocab import Embedding, Head
from splash.model.recurrent import StateViews
from splash.model.weights import HyperWeights, KDAWeights, MLPWeights, MoEWeights, RankWeights
from splash.spec.model import GQASpec, MLASpec, ModelSpec, MoESpec
from splash.spec.packing import Packing


def assemble(
    *,
    spec: ModelSpec,
    weights: RankWeights,
    shards: Sequence[Sequence[MLAShard | GQAShard]],
    fields: Sequence[tuple[torch.Tensor, ...]],
    packings: Sequence[tuple[Packing | None, ...]],
    comm: Communicator,
    attention: Attention,
    topo: Topology,
    states: StateViews | None = None,
    down: int = 0,
) -> Decoder:
    """`shards[layer][j]` is head shard j, `fields[layer]` are the fields of this rank's pages and `packings[layer]` how
    their entries are packed, `states` its recurrent states, where the model has any, `down` as in
    `layout.exchange.Widths`."""
    layers, num_recurrent, num_indexed = [], 0, 0
    for index, layer in enumerate(weights.layers):
        mixer: Mixer
        if isinstance(layer.attention, KDAWeights):
            mixer = _recurrent(spec, layer.attention, states, num_recurrent)
            num_recurrent += 1
        else:
            projection = _projection(spec, layer.attention, shards[index], comm, topo, down)
            mixer = AttentionPipeline(
                projection=projection,
                pages=LayerPages(fields[index], projection.paged(fields[index]), packings[index]),
                comm=comm,
                attention=attention,
                topo=topo,
                scale=spec.attention.softmax_scale,
                indexer=_indexer(
                    spec, index, layer.attention, fields[index], comm, attention, states, num_indexed
                ),
            )
            num_indexed += spec.has_indexer(index)
        ffn = _feed_forward(spec.ffns[index], layer.ffn, spec.swiglu_limit)
        residuals = _residuals(spec, layer.hyper)
        attention_norm = RMSNorm(layer.attention_norm, spec.norm_eps)
        ffn_norm = RMSNorm(layer.ffn_norm, spec.norm_eps)
        layers.append(Layer(attention_norm, mixer, ffn_norm, ffn, *residuals))
    return Decoder(
        embedding=Embedding(weights.embed, weights.first_token),
        layers=layers,
        norm=RMSNorm(weights.final_norm, spec.norm_eps),
        head=Head(packed(weights.head), weights.first_token),
        comm=comm,
        num_streams=1 if spec.hyper is None else spec.hyper.streams,
    )


def _recurrent(spec: ModelSpec, weights: KDAWeights, states: StateViews | None, number: int) -> Mixer:
    """The recurrent layer `number` of them."""
    assert spec.kda is not None
    assert states is not None
    packed_weights = replace(weights, project=packed(weights.project), o=packed(weights.o))
    mixer = KDA(spec.kda, packed_weights, states, layer=number, norm_eps=spec.norm_eps)

    def mix(
        h: torch.Tensor, rows: AttentionRows, selection: Selection | None
    ) -> tuple[torch.Tensor, Selection | None]:
        assert rows.recurrent is not None
        return mixer(h, rows.recurrent), selection

    return mix


def _residuals(
    spec: ModelSpec, weights: tuple[HyperWeights, HyperWeights] | None
) -> tuple[Residual, Residual]:
    if weights is None:
        return added, added
    assert spec.hyper is not None
    attention, ffn = (HyperConnection(spec.hyper, block, spec.norm_eps) for block in weights)
    return attention, ffn


def _projection(
    spec: ModelSpec,
    weights: MLAWeights | GQAWeights,
    shards: Sequence[Any],
    comm: Communicator,
    topo: Topology,
    down: int,
) -> Projection:
    if isinstance(weights, MLAWeights):
        assert isinstance(spec.attention, MLASpec)
        part = weights.a[comm.rank * down : (comm.rank + 1) * down] if down else weights.a
        own = replace(weights, a=packed(part))
        return MLAProjection(spec.attention, own, shards, comm.rank, gather=comm if down else None)
    assert isinstance(spec.attention, GQASpec)
    return GQAProjection(spec.attention, weights, shards, comm.rank, topo, spec.norm_eps)


def _indexer(
    spec: ModelSpec,
    layer: int,
    weights: MLAWeights | GQAWeights,
    fields: tuple[torch.Tensor, ...],
    comm: Communicator,
    attention: Attention,
    states: StateViews | None,
    number: int,
) -> Indexer | None:
    """The layer's own, `number` of them, whose keys are the last field of its pages."""
    if spec.indexer is None or not spec.has_indexer(layer):
        return None
    assert isinstance(weights, MLAWeights)
    assert weights.indexer is not None
    own = weights.indexer
    own = replace(own, wq_b=packed(own.wq_b), wk=packed(own.wk), heads=packed(own.heads))
    pooling = None
    if own.pool is not None:
        assert states is not None
        pooling = Pooling(replace(own.pool, gate=packed(own.pool.gate)), states.tail, layer=number)
    return Indexer(spec.indexer, own, keys=fields[-1], comm=comm, attention=attention, pooling=pooling)


def _feed_forward(spec: Any, weights: MLPWeights | MoEWeights, limit: float | None) -> FeedForward:
    if isinstance(weights, MLPWeights):
        return _mlp(weights, limit)
    assert isinstance(spec, MoESpec)
    return MoE(
        Router(spec, weights.router, weights.router_bias),
        [packed(matrix) for matrix in weights.gate_up],
        [packed(matrix) for matrix in weights.down],
        first=weights.first,
        shared=None if weights.shared is None else _mlp(weights.shared, limit),
        limit=limit,
    )


def _mlp(weights: MLPWeights, limit: float | None) -> MLP:
    return MLP(packed(weights.gate_up), packed(weights.down), limit)
