"""RMS normalisation, in fp32 inside."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def rms_norm(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    """`x` [..., d] over its root mean square, times `weight` [d] if given."""
    return F.rms_norm(x, (x.shape[-1],), weight, eps)
