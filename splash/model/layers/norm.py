"""RMS normalisation, in fp32 inside."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F


def rms_norm(x: torch.Tensor, eps: float) -> torch.Tensor:
    """`x` [..., d] over its root mean square √(mean x² + `eps`)."""
    return F.rms_norm(x, (x.shape[-1],), None, eps)


class RMSNorm:
    """`x` [..., d] over its root mean square √(mean x² + eps), times `weight` ([d], or any shape that x ends in).

    Of numbers of four bytes it is x / hypot(|x|, √(d eps)) · √d weight: half as many operations as torch's own, which
    has no kernel for it on a CPU.
    """

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self.weight = weight
        self.eps = eps
        width = weight.shape[-1]
        self._floor = weight.new_tensor(math.sqrt(width * eps))
        self._scaled = weight * math.sqrt(width)

    def __call__(self, x: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        """A new tensor, or `out` (which may be `x`)."""
        if x.itemsize < 4:
            normed = rms_norm(x.float(), self.eps).mul_(self.weight)
            return normed.to(x.dtype) if out is None else out.copy_(normed)
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return torch.div(x, length.hypot_(self._floor), out=out).mul_(self._scaled)
