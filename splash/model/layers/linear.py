"""Matrix products of the model, in whatever form is fastest where they run.

In fp32 on a CPU, torch's own products may come from a library that does not use the machine's widest vectors and
reads a matrix for one row at half the speed of the memory. Two others are at hand (docs/adr/0004): oneDNN, which torch
has too, for several rows and for weights in the memory order that it likes best (`packed`); and numpy's BLAS for one
row and for products by head. oneDNN compiles a kernel for each shape (about half a millisecond), so rows are padded to
a few counts.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

EXACT_ROWS = 4
"""So few rows are never padded."""
PACKING_ROWS = 16
"""Rows that oneDNN is told to expect when it orders a matrix; what it chooses is the fastest form from 1 to 64."""
SMALL_MATRIX = 1 << 16
"""Smaller matrices are neither packed nor worth another library's call."""
SMALL_PRODUCT = 1 << 19
"""Products of so few multiplications cost less than oneDNN's call (10 µs)."""
LOOP_ROWS = 48
"""From so many rows on, one oneDNN product a head is faster than numpy's loop over heads."""

_HAS_ONEDNN = torch.backends.mkldnn.is_available() and all(
    hasattr(torch.ops.mkldnn, name) for name in ("_linear_pointwise", "_reorder_linear_weight")
)


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`x` [n, in] @ `weight` [out, in] transposed, plus `bias` [out] -> [n, out]. Any strides, or `packed`."""
    n = x.shape[0]
    if weight.is_mkldnn:
        return _onednn(x, weight, bias) if n else x.new_empty(0, weight.shape[0])
    if not _is_plain(x) or weight.numel() < SMALL_MATRIX or not _is_dense(weight):
        return F.linear(x, weight, bias)
    if n == 1:
        row = torch.from_numpy(x.numpy() @ weight.numpy().T)
        return row if bias is None else row.add_(bias)
    if not _HAS_ONEDNN or n * weight.numel() < SMALL_PRODUCT:
        return F.linear(x, weight, bias)
    return _onednn(x, weight, bias)


def packed(weight: torch.Tensor) -> torch.Tensor:
    """The same matrix [out, in] as `linear` prefers it, of an opaque layout; call it once, when loading."""
    if not _is_plain(weight) or not _HAS_ONEDNN or weight.numel() < SMALL_MATRIX:
        return weight
    return torch.ops.mkldnn._reorder_linear_weight(weight, PACKING_ROWS)


def bucket(n: int) -> int:
    """The least count of rows, not below `n`, that kernels are made for: steps of at most 1/4, of 4 at least."""
    if n <= EXACT_ROWS:
        return n
    step = 1 << max(n.bit_length() - 3, 2)
    return -(-n // step) * step


def heads_matmul(x: torch.Tensor, weight: torch.Tensor, *, out: torch.Tensor) -> None:
    """Per head `x` [n, heads, in] @ `weight` [heads, in, m] -> `out` [n, heads, m]. Any strides."""
    if not _is_plain(x):
        torch.bmm(x.transpose(0, 1), weight, out=out.transpose(0, 1))
    elif x.shape[0] < LOOP_ROWS:
        np.matmul(x.transpose(0, 1).numpy(), weight.numpy(), out=out.transpose(0, 1).numpy())
    else:
        for head in range(x.shape[1]):
            out[:, head] = linear(x[:, head], weight[head].t())


def _is_plain(x: torch.Tensor) -> bool:
    """Whether numpy can see it and oneDNN multiply it: fp32 in this process's memory, at least one row."""
    return x.dtype is torch.float32 and x.device.type == "cpu" and x.shape[0] > 0


def _is_dense(weight: torch.Tensor) -> bool:
    """By rows or by columns; oneDNN takes a path 100 times as slow for others."""
    num_out, num_in = weight.shape
    return weight.stride() in ((num_in, 1), (1, num_out))


def _onednn(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    n = x.shape[0]
    rows = bucket(n)
    if rows == n:
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    padded = F.pad(x, (0, 0, 0, rows - n))
    return torch.ops.mkldnn._linear_pointwise(padded, weight, bias, "none", [], "")[:n]
