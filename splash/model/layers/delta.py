"""The gated delta rule with a decay for each channel (Kimi Linear, arXiv 2510.26692), in fp32.

For each head: S = exp(g) S; S += k (x) beta (v - S^T k); o = S^T q, with S [d_k, d_v] and g <= 0 per key channel.
One token of many requests goes through `step`, many tokens of one request through `scan`; both are the same function.
"""

from __future__ import annotations

import torch

CHUNK = 64
"""Tokens that `scan` solves at once."""
BLOCK = 16
"""Tokens over which decays are referred to their middle: exp(8 * 5) is far from the ends of fp32."""


def step(
    state: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
) -> torch.Tensor:
    """One token of n sequences: `state` [n, heads, d_k, d_v] is updated in place -> [n, heads, d_v].

    `q`, `k`, `g` [n, heads, d_k], `v` [n, heads, d_v], `beta` [n, heads].
    """
    state *= g.exp().unsqueeze(-1)
    delta = (v - _read(state, k)) * beta.unsqueeze(-1)
    state += k.unsqueeze(-1) * delta.unsqueeze(-2)
    return _read(state, q)


def scan(
    state: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
) -> torch.Tensor:
    """t tokens of one sequence: `state` [heads, d_k, d_v] is updated in place -> [t, heads, d_v].

    `q`, `k`, `g` [t, heads, d_k], `v` [t, heads, d_v], `beta` [t, heads]; g >= -5, so that a block's decays fit fp32.
    """
    out = torch.empty_like(v)
    for first in range(0, len(q), CHUNK):
        now = slice(first, first + CHUNK)
        by_head = [x[now].transpose(0, 1) for x in (q, k, v, g, beta)]
        out[now] = _chunk(state, *by_head).transpose(0, 1)
    return out


def _read(state: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """S^T key."""
    return (key.unsqueeze(-2) @ state).squeeze(-2)


def _chunk(
    state: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
) -> torch.Tensor:
    """`scan` of one chunk, heads first: what each token adds follows from a triangular system over the chunk.

    With G the running sum of g, token i adds k_i (x) u_i, where u_i + sum_{j<i} beta_i (k_i . exp(G_i - G_j) k_j) u_j
    = beta_i (v_i - (exp(G_i) k_i) S): linear in what S held before, so it is solved for both parts at once.
    """
    decay = g.cumsum(1)
    scaled = k * beta.unsqueeze(-1)
    among, before = _decayed_products(torch.stack([q, scaled]), k, decay)
    right = torch.cat([v * beta.unsqueeze(-1), scaled * decay.exp()], dim=-1)
    solved = torch.linalg.solve_triangular(before, right, upper=False, unitriangular=True)
    new, seen = solved.split([v.shape[-1], k.shape[-1]], dim=-1)
    added = torch.baddbmm(new, seen, state, alpha=-1)
    out = torch.baddbmm(among @ added, q * decay.exp(), state)
    left = decay[:, -1:]
    state *= left.exp().transpose(1, 2)
    state.baddbmm_((k * (left - decay).exp()).transpose(1, 2), added)
    return out


def _decayed_products(x: torch.Tensor, k: torch.Tensor, decay: torch.Tensor) -> torch.Tensor:
    """sum_c x[i, c] k[j, c] exp(G[i, c] - G[j, c]) for j <= i, else 0: `x` [m, heads, t, d] -> [m, heads, t, t].

    The exponent is split at a token between i and j, or near both, so that neither factor overflows.
    """
    out = x.new_zeros(*x.shape[:-1], x.shape[-2])
    for first in range(0, x.shape[-2], BLOCK):
        rows = slice(first, min(first + BLOCK, x.shape[-2]))
        middle = (rows.start + rows.stop) // 2
        for columns, at in ((slice(0, first), max(first - 1, 0)), (rows, middle)):
            pivot = decay[:, at : at + 1]
            scaled = k[:, columns] * (pivot - decay[:, columns]).exp()
            out[..., rows, columns] = (
                x[..., rows, :] * (decay[:, rows] - pivot).exp() @ scaled.transpose(1, 2)
            )
    return out.tril_()
