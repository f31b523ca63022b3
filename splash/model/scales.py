"""The scales of a checkpoint's quantised tensors: found by name, checked against the config and the matrix."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from splash.core.errors import CheckpointError
from splash.model.tensorfile import StoredTensor
from splash.spec.model import ModelSpec
from splash.spec.quantisation import SCALE_SUFFIXES, Element, Quantisation
from splash.spec.tensors import model_tensors

FLOATS = ("F64", "F32", "F16", "BF16")
"""Types of plain weights; they are converted to the type that is computed in."""
ELEMENTS: Mapping[str, Element] = {"F8_E4M3": "fp8", "I8": "int8"}
"""Types of quantised ones."""
SCALE_DTYPES = ("F32", "BF16", "F16", "F8_E8M0", "U8")
"""Types of scales; the last two are powers of two in one byte (ue8m0)."""


def find_scales(
    folder: Path, spec: ModelSpec, quantisation: Quantisation | None, tensors: Mapping[str, StoredTensor]
) -> dict[str, StoredTensor]:
    """The scales of every quantised tensor of the model, by the tensor's name, checked."""
    found: dict[str, StoredTensor] = {}
    for name in (tensor.name for tensor in model_tensors(spec)):
        stored = tensors[name]
        if stored.dtype in FLOATS:
            _check_plain(folder, name, tensors)
        else:
            found[name] = _scale(folder, name, quantisation, tensors)
    return found


def _check_plain(folder: Path, name: str, tensors: Mapping[str, StoredTensor]) -> None:
    for suffix in SCALE_SUFFIXES:
        if name + suffix in tensors:
            raise CheckpointError(
                f"{folder}: {name} is stored as {tensors[name].dtype} and yet has scales ({suffix[1:]});"
                f" one of them is from another release, get both again"
            )


def _scale(
    folder: Path, name: str, quantisation: Quantisation | None, tensors: Mapping[str, StoredTensor]
) -> StoredTensor:
    """The scales of one quantised tensor."""
    stored = tensors[name]
    if quantisation is None:
        raise CheckpointError(
            f"{folder}: {name} is quantised ({stored.dtype}), but config.json has no quantization_config that says how"
        )
    if ELEMENTS.get(stored.dtype) != quantisation.element or len(stored.shape) != 2:
        raise CheckpointError(
            f"{folder}: {name} is stored as {stored.dtype} {list(stored.shape)}, config.json says {quantisation.name};"
            f" get both again, or use a release in bfloat16"
        )
    if quantisation.leaves_plain(stored.name):
        raise CheckpointError(
            f"{folder}: {name} is stored as {stored.dtype}, but config.json lists it as not quantised; get both again"
        )
    scale = next((tensors[name + suffix] for suffix in SCALE_SUFFIXES if name + suffix in tensors), None)
    if scale is None:
        raise CheckpointError(
            f"{folder}: {name} is stored as {stored.dtype} and has no scales"
            f" ({' or '.join(f'{name}{suffix}' for suffix in SCALE_SUFFIXES)}); a file is missing or damaged"
        )
    _check_scale(folder, name, scale, quantisation.scale_shape((stored.shape[0], stored.shape[1])))
    return scale


def _check_scale(folder: Path, name: str, scale: StoredTensor, expected: tuple[int, int]) -> None:
    accepted: set[tuple[int, ...]] = {expected}
    if expected[1] == 1:
        accepted.add(expected[:1])
    if expected == (1, 1):
        accepted.add(())
    if scale.shape not in accepted:
        raise CheckpointError(
            f"{folder}: {scale.name} has shape {list(scale.shape)}, the scales of {name} are {list(expected)}"
        )
    if scale.dtype not in SCALE_DTYPES:
        raise CheckpointError(
            f"{folder}: {scale.name} is stored as {scale.dtype}; scales are {', '.join(SCALE_DTYPES)}"
        )
