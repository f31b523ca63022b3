"""Quantised matrices as numbers: every element times the scale of its tile, in float32."""

from __future__ import annotations

import torch

from splash.hal.fp8 import E4M3, fp8_values


def dequantised(
    elements: torch.Tensor,
    scales: torch.Tensor,
    *,
    rows: range,
    columns: range,
    tile: tuple[int | None, int | None],
) -> torch.Tensor:
    """The part `rows` x `columns` of a matrix [out, in] -> float32 of its shape.

    `elements` is that part (fp8 e4m3 or int8), `scales` [tiles down, tiles across] are those of the tiles that cover
    it (`covering`), each of `tile` rows x columns; the part may begin and end within tiles.
    """
    found = fp8_values(elements) if elements.dtype is E4M3 else elements.float()
    for dim, (part, size) in enumerate(zip((rows, columns), tile, strict=True)):
        if size is not None and size > 1:
            of_each = torch.arange(part.start, part.stop) // size - part.start // size
            scales = scales.index_select(dim, of_each)
    return found.mul_(scales)


def covering(part: range, tile: int | None) -> range:
    """The tiles that `part` of a dimension touches."""
    return range(1) if tile is None else range(part.start // tile, -(-part.stop // tile))


def scale_values(scales: torch.Tensor) -> torch.Tensor:
    """Scales as float32: floats as they are, one byte each as a power of two (ue8m0: exponent + 127)."""
    if scales.dtype is torch.uint8:
        scales = scales.view(torch.float8_e8m0fnu)
    return scales.float()
