"""A gated MLP, sharded by its inner width."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from splash.model.layers.linear import linear


class MLP:
    """This rank's share of down(silu(gate x) * up x); the closing all-reduce adds the shares.

    `gate_up` [2 * f, hidden]: the f gate rows of this rank, then its f up rows. `down` [hidden, f]. `limit` as in
    `gated`.
    """

    def __init__(self, gate_up: torch.Tensor, down: torch.Tensor, limit: float | None = None) -> None:
        self.gate_up = gate_up
        self.down = down
        self.limit = limit

    def __call__(self, h: torch.Tensor) -> torch.Tensor:
        """[n, hidden] -> [n, hidden]"""
        return linear(gated(linear(h, self.gate_up), self.limit), self.down)


def gated(gate_up: torch.Tensor, limit: float | None = None) -> torch.Tensor:
    """[n, 2 f] -> silu of the first half times the second, [n, f]. With a `limit` the gate is at most that, and the
    other half within plus and minus that (GLM-5.3-Flash)."""
    gate, up = gate_up.chunk(2, dim=-1)
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return F.silu(gate).mul_(up)
