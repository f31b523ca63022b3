"""The decoder: embedding, layers, final norm. Rows are replicated at every layer boundary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from splash.hal.protocol import Communicator
from splash.model.attention.rows import AttentionRows
from splash.model.attention.selection import Selection
from splash.model.layers.hyper import Residual, added
from splash.model.layers.norm import RMSNorm
from splash.model.layers.vocab import Embedding, Head

Mixer = Callable[[torch.Tensor, AttentionRows, Selection | None], tuple[torch.Tensor, Selection | None]]
"""[N, hidden], normed and replicated, the step's rows, and the tokens that an indexer chose in a layer before -> this
rank's share [N, hidden], and the tokens chosen now: attention or KDA."""
FeedForward = Callable[[torch.Tensor], torch.Tensor]
"""[N, hidden], normed and replicated -> this rank's share [N, hidden]."""


@dataclass(frozen=True, slots=True)
class Layer:
    attention_norm: RMSNorm
    attention: Mixer
    ffn_norm: RMSNorm
    ffn: FeedForward
    attention_residual: Residual = added
    ffn_residual: Residual = added


Watch = Callable[[int, Selection], None]
"""Is given the number of each layer that chose tokens, and what it chose."""


@dataclass(slots=True)
class _Running:
    """One step on its way through the layers; only the residual stream passes between residuals."""

    rows: AttentionRows
    selection: Selection | None = None


class Decoder:
    """One rank's part of the model. One all-reduce closes the embedding, each attention and each FFN."""

    def __init__(
        self,
        *,
        embedding: Embedding,
        layers: Sequence[Layer],
        norm: RMSNorm,
        head: Head,
        comm: Communicator,
        num_streams: int = 1,
    ) -> None:
        """`num_streams`: of the residual; more than one where the layers have hyper-connections."""
        self.embedding = embedding
        self.layers = layers
        self.norm = norm
        self.head = head
        self.comm = comm
        self.num_streams = num_streams

    def forward(self, tokens: torch.Tensor, rows: AttentionRows, watch: Watch | None = None) -> torch.Tensor:
        """`tokens` int64 [N] -> hidden states [N, hidden] before the final norm, the same on all ranks."""
        x = self.comm.all_reduce(self.embedding(tokens))
        if self.num_streams > 1:
            x = x.unsqueeze(1).repeat(1, self.num_streams, 1)
        step = _Running(rows)
        for number, layer in enumerate(self.layers):
            before = step.selection
            x = layer.attention_residual(x, partial(self._attention, layer, step))
            x = layer.ffn_residual(x, partial(self._ffn, layer))
            if watch is not None and step.selection is not None and step.selection is not before:
                watch(number, step.selection)
        return x.mean(1) if self.num_streams > 1 else x

    def _attention(self, layer: Layer, step: _Running, x: torch.Tensor) -> torch.Tensor:
        share, step.selection = layer.attention(layer.attention_norm(x), step.rows, step.selection)
        return self.comm.all_reduce(share)

    def _ffn(self, layer: Layer, x: torch.Tensor) -> torch.Tensor:
        return self.comm.all_reduce(layer.ffn(layer.ffn_norm(x)))

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """Hidden states [n, hidden] -> this rank's logits [n, tokens here] fp32."""
        return self.head(self.norm(x))
