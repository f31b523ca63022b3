"""A safetensors file's header: which tensors it holds and where, checked against its size without reading data.

Format: 8 bytes of little-endian length, that many bytes of JSON, then the data
(https://huggingface.co/docs/safetensors).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from splash.core.errors import CheckpointError

ITEMSIZE: Mapping[str, int] = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "I64": 8,
    "U64": 8,
    "I32": 4,
    "U32": 4,
    "I16": 2,
    "U16": 2,
    "I8": 1,
    "U8": 1,
    "BOOL": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
}
"""Bytes of an element; tensors of other types are listed, their sizes not checked."""

_LONGEST_HEADER = 100_000_000
_LFS_POINTER = b"version https://git-lfs"


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a file; `name` is the one that the file has for it."""

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]


def read_header(file: Path) -> tuple[StoredTensor, ...]:
    """The tensors of a safetensors file; CheckpointError if it is truncated, damaged or of another kind."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        head = stream.read(len(_LFS_POINTER))
        if head == _LFS_POINTER:
            raise CheckpointError(
                f"{file} is a Git LFS pointer, not the weights; run `git lfs pull` in its folder"
            )
        length = int.from_bytes(head[:8], "little")
        if size >= 8 and length > _LONGEST_HEADER:
            raise CheckpointError(f"{file} is no safetensors file")
        if size < 8 + length:
            raise _truncated(file, size, at_least=8 + length)
        stream.seek(8, os.SEEK_SET)
        header = _parse(file, stream.read(length))
    tensors, end = [], 0
    for name, entry in header.items():
        tensor, stop = _entry(file, name, entry)
        tensors.append(tensor)
        end = max(end, stop)
    expected = 8 + length + end
    if size < expected:
        raise _truncated(file, size, at_least=expected)
    if size > expected:
        raise CheckpointError(f"{file} has {size - expected} bytes more than its header lists; get it again")
    return tuple(tensors)


def unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """`object_pairs_hook` for json: ValueError at a key that comes twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"{', '.join(twice)} comes twice")
    return found


def _parse(file: Path, text: bytes) -> dict[str, Any]:
    """The header's entries, without its metadata."""
    try:
        header = json.loads(text, object_pairs_hook=unique_pairs)
    except ValueError as error:
        raise CheckpointError(f"{file} has a damaged header ({error}); get it again") from None
    if not isinstance(header, dict):
        raise CheckpointError(f"{file} is no safetensors file")
    header.pop("__metadata__", None)
    return header


def _entry(file: Path, name: str, entry: Any) -> tuple[StoredTensor, int]:
    """A tensor, and the end of its data within the data section, bytes."""
    try:
        start, stop = entry["data_offsets"]
        tensor = StoredTensor(name, file, str(entry["dtype"]), tuple(int(n) for n in entry["shape"]))
        itemsize = ITEMSIZE.get(tensor.dtype)
        sound = itemsize is None or stop - start == prod(tensor.shape) * itemsize
    except (KeyError, TypeError, ValueError):
        sound = False
    if not sound:
        raise CheckpointError(f"{file} has a damaged header (tensor {name}); get it again")
    return tensor, int(stop)


def _truncated(file: Path, size: int, *, at_least: int) -> CheckpointError:
    return CheckpointError(f"{file} is truncated: {size} bytes of {at_least}; get it again")
