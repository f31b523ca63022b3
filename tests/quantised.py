"""Quantised copies of tiny checkpoints, each with a twin of plain float32 weights that mean the same.

What a weight means is computed here one tile after the other, so that the loader's way has a slow other one.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

LARGEST = {"fp8": 448.0, "int8": 127.0}
DTYPES = {"fp8": torch.float8_e4m3fn, "int8": torch.int8}
PLAIN = ("embed_tokens", "lm_head", "mlp.gate.weight", "weights_proj")
"""Matrices that releases leave in BF16 (MODELS §1.1)."""


@dataclass(frozen=True)
class Scheme:
    """One way in which a release is quantised; `rows` and `columns` of a tile, None is all."""

    config: dict[str, Any]
    element: str
    rows: int | None
    columns: int | None
    suffix: str = "_scale_inv"
    ue8m0: bool = False
    """Scales are powers of two."""
    stored: torch.dtype = torch.float32
    """Type of the scales; uint8 and float8_e8m0fnu hold exponents."""
    flat: bool = False
    """Scales [out] rather than [out, 1]."""


def _fp8(block: int = 128, **config: Any) -> dict[str, Any]:
    return {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "quant_method": "fp8",
        "weight_block_size": [block, block],
        **config,
    }


def _compressed(fmt: str, **weights: Any) -> dict[str, Any]:
    group = {
        "targets": ["Linear"],
        "weights": {"num_bits": 8, "symmetric": True, "dynamic": False, **weights},
    }
    return {
        "quant_method": "compressed-tensors",
        "format": fmt,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head", "re:.*mlp.gate$"],
    }


INT8 = _compressed("int-quantized", type="int", strategy="channel")
SCHEMES: dict[str, Scheme] = {
    "fp8": Scheme(_fp8(modules_to_not_convert=["lm_head"]), "fp8", 128, 128),
    "fp8_small_blocks": Scheme(_fp8(48), "fp8", 48, 48),
    "fp8_ue8m0": Scheme(_fp8(scale_fmt="ue8m0"), "fp8", 128, 128, ue8m0=True),
    "fp8_e8m0_bytes": Scheme(
        _fp8(32, scale_fmt="ue8m0"), "fp8", 32, 32, ue8m0=True, stored=torch.float8_e8m0fnu
    ),
    "fp8_uint8_bytes": Scheme(_fp8(32, scale_fmt="ue8m0"), "fp8", 32, 32, ue8m0=True, stored=torch.uint8),
    "fp8_channels": Scheme(
        _compressed("float-quantized", type="float", strategy="channel"), "fp8", 1, None, "_scale"
    ),
    "fp8_tensor": Scheme(
        _compressed("float-quantized", type="float", strategy="tensor"), "fp8", None, None, "_scale"
    ),
    "int8": Scheme(INT8, "int8", 1, None, "_scale"),
    "int8_flat": Scheme(INT8, "int8", 1, None, "_scale", flat=True, stored=torch.bfloat16),
}

ODD = {"hidden_size": 144, "intermediate_size": 250, "moe_intermediate_size": 50, "kv_lora_rank": 150}
"""Nothing of this fills blocks of 128, and kv_a has 166 rows; heads have 48 and 64 rows, so shards begin in blocks."""
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "deepseek_v3": ("deepseek_v3", {}),
    "deepseek_v3_odd": ("deepseek_v3", ODD),
    "deepseek_v32": ("deepseek_v32", {}),
    "llama": ("llama", {"kv_heads": 4, "intermediate_size": 250}),
}


@dataclass
class Made:
    """`folder` is quantised, `twin` plain float32."""

    folder: Path
    twin: Path
    quantised: list[str] = field(default_factory=list)
    """Names of the quantised tensors."""


def quantise(source: Path, target: Path, scheme: Scheme) -> Made:
    """Both copies of a checkpoint of one float32 file, below `target`."""
    made = Made(target / "quantised", target / "twin")
    stored: dict[str, torch.Tensor] = {}
    meant: dict[str, torch.Tensor] = {}
    for name, weight in load_file(source / "model.safetensors").items():
        stored[name] = meant[name] = weight
        if weight.dim() == 2 and not any(part in name for part in PLAIN):
            made.quantised.append(name)
            stored[name], scales, meant[name] = quantised(weight, scheme)
            stored[name + scheme.suffix] = scales
    for folder, tensors in ((made.folder, stored), (made.twin, meant)):
        shutil.copytree(source, folder)
        save_file(tensors, folder / "model.safetensors")
    config = json.loads((source / "config.json").read_text())
    (made.folder / "config.json").write_text(json.dumps({**config, "quantization_config": scheme.config}))
    return made


def quantised(weight: torch.Tensor, scheme: Scheme) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Elements, scales as they are stored, and what they mean in float32, tile by tile."""
    largest, dtype = LARGEST[scheme.element], DTYPES[scheme.element]
    elements, meant = torch.zeros(weight.shape, dtype=dtype), torch.zeros_like(weight)
    rows, columns = scheme.rows or weight.shape[0], scheme.columns or weight.shape[1]
    scales = torch.zeros(-(-weight.shape[0] // rows), -(-weight.shape[1] // columns))
    for i, j in _places(scales):
        tile = slice(i * rows, (i + 1) * rows), slice(j * columns, (j + 1) * columns)
        scale = weight[tile].abs().max() / largest
        if scheme.ue8m0:
            scale = torch.exp2(scale.log2().ceil())
        elif scheme.stored is torch.bfloat16:
            scale = scale.bfloat16().float() * 1.0078125  # so that nothing is out of range
            scale = scale.bfloat16().float()
        quotient = weight[tile] / scale
        if scheme.element == "int8":
            quotient = quotient.round().clamp(-127, 127)
        elements[tile] = quotient.to(dtype)
        meant[tile] = elements[tile].float() * scale
        scales[i, j] = scale
    return elements, _as_stored(scales, scheme), meant


def _places(scales: torch.Tensor) -> Iterator[tuple[int, int]]:
    return ((i, j) for i in range(scales.shape[0]) for j in range(scales.shape[1]))


def _as_stored(scales: torch.Tensor, scheme: Scheme) -> torch.Tensor:
    if scheme.stored in (torch.uint8, torch.float8_e8m0fnu):
        exponents = (scales.log2() + 127).to(torch.uint8)
        return exponents.view(scheme.stored)
    scales = scales.to(scheme.stored)
    return scales.flatten() if scheme.flat else scales
