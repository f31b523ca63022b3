"""Matrix products of the model, in whatever form is fastest where they run."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`x` [n, in] @ `weight` [out, in] transposed, plus `bias` [out] -> [n, out]. Any strides."""
    return F.linear(x, weight, bias)


def heads_matmul(x: torch.Tensor, weight: torch.Tensor, *, out: torch.Tensor) -> None:
    """Per head `x` [n, heads, in] @ `weight` [heads, in, m] -> `out` [n, heads, m]. Any strides."""
    torch.bmm(x.transpose(0, 1), weight, out=out.transpose(0, 1))
