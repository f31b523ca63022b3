"""Products in every form that a matrix can have, and the norm, against double precision."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from splash.model.layers.linear import LOOP_ROWS, SMALL_MATRIX, heads_matmul, linear, packed
from splash.model.layers.norm import RMSNorm

LARGE, SMALL = (300, 260), (24, 40)
"""Matrices on both sides of SMALL_MATRIX, neither a multiple of what kernels work in."""
FORMS = {
    "rows": lambda weight: weight,
    "columns": lambda weight: weight.t().contiguous().t(),
    "a part of a wider matrix": lambda weight: torch.cat([weight, weight], dim=1)[:, : weight.shape[1]],
    "packed": packed,
}


def _drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("rows", [0, 1, 2, 5, 17, 64])
@pytest.mark.parametrize("shape", [LARGE, SMALL])
@pytest.mark.parametrize("form", FORMS)
def test_a_product_is_the_same_in_every_form(form: str, shape: tuple[int, int], rows: int) -> None:
    """Red when padded rows are returned, a bias is lost, or a form is read in the wrong order."""
    assert LARGE[0] * LARGE[1] >= SMALL_MATRIX > SMALL[0] * SMALL[1]
    weight, x, bias = _drawn(*shape), _drawn(rows, shape[1], seed=1), _drawn(shape[0], seed=2)
    with torch.inference_mode():
        for added in (None, bias):
            result = linear(x, FORMS[form](weight), added)
            wanted = F.linear(x.double(), weight.double(), None if added is None else added.double())
            assert result.shape == wanted.shape
            assert torch.allclose(result.double(), wanted, atol=1e-4)


def test_only_large_fp32_matrices_are_packed() -> None:
    """Red when a type that the packed products cannot take, or a matrix that is not worth it, becomes opaque."""
    assert packed(_drawn(*LARGE)).is_mkldnn
    assert not packed(_drawn(*SMALL)).is_mkldnn
    assert not packed(_drawn(*LARGE).bfloat16()).is_mkldnn


@pytest.mark.parametrize("rows", [1, 3, LOOP_ROWS])
def test_heads_are_multiplied_where_they_lie(rows: int) -> None:
    """Red when a head meets another's matrix, or what lies between the heads' outputs is written to."""
    heads, width, out_width = 4, 24, 40
    x = _drawn(rows, heads, width + 8)[..., :width]
    weight = _drawn(heads, 2 * width, out_width, seed=1)[:, width:]
    whole = torch.zeros(rows, heads, out_width + 5)
    with torch.inference_mode():
        heads_matmul(x, weight, out=whole[..., :out_width])
    wanted = torch.einsum("nhi,him->nhm", x.double(), weight.double())
    assert torch.allclose(whole[..., :out_width].double(), wanted, atol=1e-4)
    assert not whole[..., out_width:].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("weight_shape", [(96,), (3, 96)])
def test_the_norm_is_torchs(weight_shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Red when epsilon is added at another place, or in-place differs from out-of-place."""
    x = (_drawn(5, 3, 96) * torch.tensor([1e-3, 1.0, 30.0])[:, None]).to(dtype)
    weight = _drawn(*weight_shape, seed=1).to(dtype)
    wanted = F.rms_norm(x.double(), (96,), None, 1e-5) * weight.double()
    norm = RMSNorm(weight, 1e-5)
    result = norm(x)
    tolerance = 1e-2 if dtype is torch.bfloat16 else 1e-6
    assert result.dtype is dtype
    assert torch.allclose(result.double(), wanted, rtol=tolerance, atol=tolerance)
    assert norm(x, out=x) is x
    assert torch.equal(x, result)
