"""Rotary embedding: tables for positions, and rotation in place (formulas: YaRN, arXiv 2309.00071; Llama 3.1)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch

from splash.spec.model import RopeSpec

if TYPE_CHECKING:
    import numpy as np


class RopeRows(NamedTuple):
    """The rotations of some rows, to be used for any number of heads.

    Interleaved pairs: `cis` [n, 1, dim/2] complex64. Halves: `cos` and `sin` [n, 1, dim], sin with the sign of
    the half that it multiplies.
    """

    cis: torch.Tensor | None = None
    cos: torch.Tensor | None = None
    sin: torch.Tensor | None = None

    def select(self, rows: slice | torch.Tensor) -> RopeRows:
        return RopeRows(_picked(self.cis, rows), _picked(self.cos, rows), _picked(self.sin, rows))


def _picked(x: torch.Tensor | None, rows: slice | torch.Tensor) -> torch.Tensor | None:
    if x is None:
        return None
    return x[rows] if isinstance(rows, slice) else x.index_select(0, rows)


def _as_arrays(tables: RopeRows) -> list[np.ndarray | None] | None:
    """The same memory as numpy sees it; None where it cannot: on a device of its own, or of a type that it lacks."""
    try:
        return [None if x is None else x.numpy() for x in tables]
    except TypeError:
        return None


class RopeTable:
    """Rotations of positions [0, num_positions). With `spec.dim` 0 nothing is rotated."""

    def __init__(
        self, spec: RopeSpec, num_positions: int, *, dtype: torch.dtype, device: str = "cpu"
    ) -> None:
        angles = torch.arange(num_positions, dtype=torch.float32)[:, None] * inverse_frequencies(spec)
        factor = 1.0 if spec.attention_factor is None else spec.attention_factor
        cos, sin = (angles.cos() * factor)[:, None], (angles.sin() * factor)[:, None]
        if spec.interleaved:
            self._rows = RopeRows(cis=torch.complex(cos, sin).to(device))
        else:
            self._rows = RopeRows(
                cos=torch.cat([cos, cos], -1).to(device, dtype),
                sin=torch.cat([-sin, sin], -1).to(device, dtype),
            )
        self._arrays = _as_arrays(self._rows)

    def at(self, positions: torch.Tensor) -> RopeRows:
        """`positions` int64 [n]."""
        if self._arrays is None:
            return self._rows.select(positions)
        rows = positions.numpy()  # `take` does less around the copy than torch
        return RopeRows(*[None if x is None else torch.from_numpy(x.take(rows, 0)) for x in self._arrays])


def rotate(x: torch.Tensor, rows: RopeRows, *, out: torch.Tensor) -> None:
    """`x` [n, heads, dim] rotated into `out` (which may be `x`); the last dimension of both is contiguous."""
    if x.shape[-1] == 0:
        return
    if rows.cis is None:
        assert rows.cos is not None
        assert rows.sin is not None
        swapped = x.roll(x.shape[-1] // 2, -1)
        torch.mul(x, rows.cos, out=out)
        out.addcmul_(swapped, rows.sin)
    elif out is x and x.dtype == torch.float32:
        x.view(torch.complex64).mul_(rows.cis)
    elif x.dtype == torch.float32:
        torch.mul(x.view(torch.complex64), rows.cis, out=out.view(torch.complex64))
    else:
        out.copy_((x.float().view(torch.complex64) * rows.cis).view(torch.float32))


def inverse_frequencies(spec: RopeSpec) -> torch.Tensor:
    """[dim/2] fp32."""
    inverse = 1.0 / spec.theta ** (torch.arange(0, spec.dim, 2, dtype=torch.float32) / max(spec.dim, 1))
    if spec.kind == "linear":
        return inverse / spec.factor
    if spec.kind == "yarn":
        return _yarn(spec, inverse)
    if spec.kind == "llama3":
        return _llama3(spec, inverse)
    return inverse


def _yarn(spec: RopeSpec, inverse: torch.Tensor) -> torch.Tensor:
    """Low frequencies are interpolated, high ones kept, with a linear ramp between the two betas."""

    def dimension(rotations: float) -> float:
        turns = spec.original_max_position / (rotations * 2 * math.pi)
        return spec.dim * math.log(turns) / (2 * math.log(spec.theta))

    low, high = dimension(spec.beta_fast), dimension(spec.beta_slow)
    if spec.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, spec.dim - 1)
    span = high - low if high != low else 0.001
    ramp = ((torch.arange(spec.dim // 2, dtype=torch.float32) - low) / span).clamp(0, 1)
    return inverse / spec.factor * ramp + inverse * (1 - ramp)


def _llama3(spec: RopeSpec, inverse: torch.Tensor) -> torch.Tensor:
    """Wavelengths beyond the original context are stretched, with a smooth transition."""
    turns = spec.original_max_position * inverse / (2 * math.pi)
    smooth = (turns - spec.low_freq_factor) / (spec.high_freq_factor - spec.low_freq_factor)
    smooth = smooth.clamp(0, 1)
    return (1 - smooth) * inverse / spec.factor + smooth * inverse
