"""fp8 e4m3 as numbers, and KV entries packed with it (`Packing`), in plain torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from splash.spec.packing import GROUP, Packing

E4M3 = torch.float8_e4m3fn
LARGEST = 448.0
LEAST_AMAX = 1e-4
"""Groups whose largest element is below that are scaled as if it were that (DeepSeek's kernels)."""


def fp8_values(elements: torch.Tensor) -> torch.Tensor:
    """fp8 e4m3 -> float32, by a table: five times as fast as torch's conversion on a CPU (2 M elements, 2.13)."""
    table = torch.arange(256, dtype=torch.uint8, device=elements.device).view(E4M3).float()
    places = elements.contiguous().view(torch.uint8).view(-1).int()
    return table.index_select(0, places).view(elements.shape)


def packed(values: torch.Tensor, packing: Packing) -> torch.Tensor:
    """[..., width] of any float type -> uint8 [..., num_bytes].

    A scale is the power of two (ue8m0) above amax / 448 of its group, so that scaling rounds nothing.
    """
    scaled, plain = values.split([packing.scaled, packing.plain], dim=-1)
    groups = F.pad(scaled.float(), (0, -packing.scaled % GROUP)).unflatten(-1, (-1, GROUP))
    scales = _power_of_two_above(groups.abs().amax(-1).clamp(min=LEAST_AMAX) / LARGEST)
    elements = (groups / scales[..., None]).flatten(-2)[..., : packing.scaled].to(E4M3)
    parts = elements, scales, plain.to(torch.bfloat16)
    return torch.cat([part.contiguous().view(torch.uint8) for part in parts], dim=-1)


def unpacked(entries: torch.Tensor, packing: Packing) -> torch.Tensor:
    """uint8 [..., num_bytes] -> float32 [..., width]."""
    sizes = [packing.scaled, 4 * packing.num_scales, 2 * packing.plain]
    elements, scales, plain = (part.contiguous() for part in entries.split(sizes, dim=-1))
    spread = scales.view(torch.float32).repeat_interleave(GROUP, dim=-1)[..., : packing.scaled]
    values = fp8_values(elements).mul_(spread)
    return torch.cat([values, plain.view(torch.bfloat16).float()], dim=-1) if packing.plain else values


def _power_of_two_above(x: torch.Tensor) -> torch.Tensor:
    """The least power of two that is not below `x` > 0."""
    mantissa, exponent = torch.frexp(x)
    return torch.ldexp(torch.ones_like(x), exponent - (mantissa == 0.5).int())
