"""How a block joins the residual: added to one stream, or through manifold-constrained hyper-connections.

mHC (Xie et al., arXiv 2512.24880): s streams are collapsed into a block's input by learned weights, its output is
spread over them, and the streams are mixed by a matrix whose rows and columns sum to one (MODELS §2.5).
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from splash.model.layers.linear import linear
from splash.model.layers.norm import rms_norm
from splash.model.weights import HyperWeights
from splash.spec.model import HyperSpec

Block = Callable[[torch.Tensor], torch.Tensor]
"""[N, hidden] -> [N, hidden], closed: the same on all ranks."""
Residual = Callable[[torch.Tensor, Block], torch.Tensor]
"""(x, block) -> x with the block's output; x is [N, hidden], or [N, streams, hidden] in hyper-connections."""


def added(x: torch.Tensor, block: Block) -> torch.Tensor:
    """The plain residual; `x` is changed in place."""
    return x.add_(block(x))


class HyperConnection:
    """One block's `Residual` over s streams; its weights are computed in fp32, on every rank for all rows."""

    def __init__(self, spec: HyperSpec, weights: HyperWeights, norm_eps: float) -> None:
        self.spec = spec
        self.weights = weights
        self.norm_eps = norm_eps
        s = spec.streams
        self._scale = weights.scale.repeat_interleave(
            torch.tensor([s, s, s * s], device=weights.scale.device)
        )

    def __call__(self, x: torch.Tensor, block: Block) -> torch.Tensor:
        collapse, spread, mix = self._weights(x)
        out = block((collapse.unsqueeze(-1) * x).sum(1).to(x.dtype))
        mixed = mix.to(x.dtype).transpose(1, 2) @ x
        return mixed.addcmul_(spread.to(x.dtype).unsqueeze(-1), out.unsqueeze(1))

    def _weights(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Of each row: collapse [N, s], spread [N, s] and mix [N, s, s] (from stream, to stream), fp32."""
        s = self.spec.streams
        raw = linear(rms_norm(x.flatten(1).float(), self.norm_eps), self.weights.fn)
        raw = torch.addcmul(self.weights.base, raw, self._scale)
        collapse, spread, mix = raw.split([s, s, s * s], dim=-1)
        return collapse.sigmoid() + self.spec.eps, 2 * spread.sigmoid(), self._balanced(mix.view(-1, s, s))

    def _balanced(self, logits: torch.Tensor) -> torch.Tensor:
        """Sinkhorn and Knopp: a softmax of each row, then columns and rows are divided by their sums in turn."""
        eps = self.spec.eps
        mix = logits.softmax(-1).add_(eps)
        mix /= mix.sum(1, keepdim=True).add_(eps)
        for _ in range(self.spec.sinkhorn_iterations - 1):
            mix /= mix.sum(2, keepdim=True).add_(eps)
            mix /= mix.sum(1, keepdim=True).add_(eps)
        return mix
