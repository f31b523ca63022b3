"""Matrix products of the model, in whatever form is fastest where they run.

In fp32 on a CPU, torch's own `linear` may be a library that does not use the machine's widest vectors; oneDNN,
which torch has too, was 1.5 to 2.5 times as fast at 2 to 128 rows (measured on a 2-core Zen 5, torch 2.13). It
compiles a kernel for each shape (about half a millisecond), so rows are padded to a few counts.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

EXACT_ROWS = 4
"""So few rows are never padded."""
CACHE_WAY_BYTES = 4096
"""Rows of a matrix at multiples of this distance fall into the same cache sets."""
SMALL = 1 << 19
"""Products of so few multiplications cost less than oneDNN's call (10 µs)."""
LOOP_ROWS = 48
"""From so many rows on, one product a head is faster than a batched one."""

_HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`x` [n, in] @ `weight` [out, in] transposed, plus `bias` [out] -> [n, out]. Any strides."""
    n = x.shape[0]
    if not _uses_onednn(x) or not _suits_onednn(weight, n):
        return F.linear(x, weight, bias)
    padded = bucket(n)
    if padded == n:
        return _onednn(x, weight, bias)
    return _onednn(F.pad(x, (0, 0, 0, padded - n)), weight, bias)[:n]


def packed(weight: torch.Tensor) -> torch.Tensor:
    """The same matrices [..., out, in] in the memory order that `linear` prefers; call it once, when loading."""
    if not _uses_onednn(weight) or weight.shape[-2] * weight.itemsize % CACHE_WAY_BYTES == 0:
        return weight  # its columns would collide
    return weight.transpose(-1, -2).contiguous().transpose(-1, -2)


def bucket(n: int) -> int:
    """The least count of rows, not below `n`, that kernels are made for: steps of at most 1/4, of 4 at least."""
    if n <= EXACT_ROWS:
        return n
    step = 1 << max(n.bit_length() - 3, 2)
    return -(-n // step) * step


def heads_matmul(x: torch.Tensor, weight: torch.Tensor, *, out: torch.Tensor) -> None:
    """Per head `x` [n, heads, in] @ `weight` [heads, in, m] -> `out` [n, heads, m]. Any strides."""
    if x.shape[0] < LOOP_ROWS or not _uses_onednn(x):
        torch.bmm(x.transpose(0, 1), weight, out=out.transpose(0, 1))
        return
    for head in range(x.shape[1]):
        out[:, head] = linear(x[:, head], weight[head].t())


def _suits_onednn(weight: torch.Tensor, n: int) -> bool:
    """Large enough, dense (else it takes a path 100 times as slow), and not with few rows and colliding columns."""
    num_out, num_in = weight.shape
    if n * num_in * num_out < SMALL:
        return False
    if weight.stride() == (num_in, 1):
        return True
    collides = num_out * weight.itemsize % CACHE_WAY_BYTES == 0
    return weight.stride() == (1, num_out) and (n > EXACT_ROWS or not collides)


def _uses_onednn(x: torch.Tensor) -> bool:
    return _HAS_ONEDNN and x.dtype is torch.float32 and x.device.type == "cpu" and x.shape[0] > 0


def _onednn(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
