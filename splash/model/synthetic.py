"""Random checkpoints, of any model that a config.json can say, in the form that transformers and vLLM open too."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from splash.spec.config import normalise
from splash.spec.model import ModelSpec
from splash.spec.tensors import LogicalTensor, model_tensors


def write_random(folder: Path, config: Mapping[str, Any], *, seed: int = 0) -> ModelSpec:
    """Write config.json and weights of its `torch_dtype` into `folder`, and return the model. The same seed gives the
    same numbers."""
    spec = normalise(config)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    generator, dtype = torch.Generator().manual_seed(seed), getattr(torch, config["torch_dtype"])
    tensors = {tensor.name: _random(tensor, generator, dtype) for tensor in model_tensors(spec)}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return spec


def _random(tensor: LogicalTensor, generator: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
    """N(0, 1/fan_in) for matrices, 1 + 0.1 N for norms, 0.1 N for the router's bias, which stays float32."""
    drawn = torch.randn(tensor.shape, generator=generator)
    if tensor.name.endswith("bias"):
        return drawn * 0.1
    scaled = drawn * tensor.shape[-1] ** -0.5 if drawn.dim() == 2 else drawn * 0.1 + 1
    return scaled.to(dtype)
