"""Kimi delta attention: a convolution, a gated delta rule and a gated norm, over a state per head (MODELS §2.5).

Sharded by head in every layout: a rank computes its own heads of all rows, from states that never leave it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from splash.model.layers import delta
from splash.model.layers.linear import linear
from splash.model.layers.norm import RMSNorm
from splash.model.recurrent import RecurrentRows, StateRows, StateViews
from splash.model.weights import KDAWeights
from splash.spec.model import KDASpec

L2_EPS = 1e-6
"""Under the root that normalises q and k (transformers, the reference kernels)."""


class KDA:
    """This rank's share of one layer's mixer; the closing all-reduce adds the shares. `layer` counts KDA layers."""

    def __init__(
        self, spec: KDASpec, weights: KDAWeights, states: StateViews, *, layer: int, norm_eps: float
    ) -> None:
        self.spec = spec
        self.weights = weights
        self.states = states
        self.layer = layer
        self.heads = weights.decay.shape[0]
        self.width = self.heads * spec.head_dim
        self.taps = spec.conv_kernel - 1
        self._norm = RMSNorm(weights.o_norm, norm_eps)

    def __call__(self, h: torch.Tensor, rows: RecurrentRows) -> torch.Tensor:
        """`h` [N, hidden], normed and replicated -> this rank's share [N, hidden]."""
        sizes = (3 * self.width, self.heads, self.spec.head_dim, self.spec.head_dim)
        qkv, b, f, gate = linear(h, self.weights.project).split(sizes, dim=-1)
        decay, beta = self._decay(f), b.float().sigmoid()
        out = decay.new_empty(len(h), self.heads, self.spec.head_dim)
        if rows.single_states is not None:
            one = rows.single
            out[one] = self._step(qkv[one], decay[one], beta[one], rows.single_states)
        for span, states in rows.spans:
            out[span] = self._scan(qkv[span], decay[span], beta[span], states)
        return linear(self._gated(out, gate).flatten(1), self.weights.o)

    def _decay(self, f: torch.Tensor) -> torch.Tensor:
        """The log decays [n, heads, head_dim] fp32: `gate_lower_bound` multiplies the sigmoid, it is no clamp."""
        x = linear(f, self.weights.f_b).float().add_(self.weights.dt_bias).unflatten(-1, (self.heads, -1))
        return x.mul_(self.weights.decay[:, None]).sigmoid_().mul_(self.spec.gate_lower_bound)

    def _step(
        self, qkv: torch.Tensor, decay: torch.Tensor, beta: torch.Tensor, at: StateRows
    ) -> torch.Tensor:
        """One token of n requests: `qkv` [n, 3 width] -> [n, heads, head_dim] fp32."""
        rows = at.matrices[self.layer]
        state = _taken(self.states.matrices, rows).unflatten(1, (self.heads, -1))
        q, k, v = self._convolved(qkv.unsqueeze(1), at)
        out = delta.step(state, q[:, 0], k[:, 0], v[:, 0], decay, beta)
        self.states.matrices.index_copy_(0, rows.flatten(), state.flatten(0, 2))
        return out

    def _scan(
        self, qkv: torch.Tensor, decay: torch.Tensor, beta: torch.Tensor, at: StateRows
    ) -> torch.Tensor:
        """t tokens of one request: `qkv` [t, 3 width] -> [t, heads, head_dim] fp32."""
        rows = at.matrices[self.layer]
        state = _taken(self.states.matrices, rows)[0].unflatten(0, (self.heads, -1))
        q, k, v = self._convolved(qkv.unsqueeze(0), at)
        out = delta.scan(state, q[0], k[0], v[0], decay, beta)
        self.states.matrices.index_copy_(0, rows.flatten(), state.flatten(0, 1))
        return out

    def _convolved(self, qkv: torch.Tensor, at: StateRows) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """`qkv` [n, t, 3 width] -> normalised q, k and v [n, t, heads, head_dim] fp32; what is remembered moves on."""
        n, t, _ = qkv.shape
        rows = at.taps[self.layer]
        before = _taken(self.states.taps, rows).view(n, self.taps, -1)
        window = torch.cat([before, qkv], dim=1)
        self.states.taps.index_copy_(0, rows.flatten(), window[:, t:].reshape(-1, self.spec.head_dim))
        window = window.float()
        mixed = sum(window[:, i : i + t] * tap for i, tap in enumerate(self.weights.conv))
        q, k, v = F.silu(mixed).unflatten(-1, (3, self.heads, -1)).unbind(2)
        return _unit(q).mul_(self.spec.head_dim**-0.5), _unit(k), v

    def _gated(self, out: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """Norm of each head's output, times the sigmoid of its gate -> [n, heads, head_dim] in the gate's type."""
        normed = self._norm(out)
        gates = linear(gate, self.weights.g_b).float().sigmoid_()
        return normed.mul_(gates.view_as(normed)).to(gate.dtype)


def _taken(rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """`rows` [R, d] at `index` [n, m] -> a copy [n, m, d]."""
    return rows.index_select(0, index.flatten()).view(*index.shape, -1)


def _unit(x: torch.Tensor) -> torch.Tensor:
    """`x` [..., d] at length one."""
    return x / (x.square().sum(-1, keepdim=True) + L2_EPS).sqrt()
