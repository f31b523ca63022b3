"""Which tensors the safetensors files of a folder hold: one file, hundreds with an index, or all there are.

Headers only. Index and files must agree: a tensor in two files, or in another file than the index says, is an error
that names it and them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from splash.core.errors import CheckpointError
from splash.model.tensorfile import StoredTensor, read_header, unique_pairs

SINGLE_FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"


@contextmanager
def folder_errors(folder: Path) -> Iterator[None]:
    """CheckpointError for what the system refuses in a checkpoint's folder; it names the file."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"cannot read {error.filename or folder}: {error.strerror or error} (--model)"
        ) from None


def read_object(file: Path) -> dict[str, Any]:
    """A JSON file that holds one object; CheckpointError otherwise."""
    try:
        value = json.loads(file.read_bytes(), object_pairs_hook=unique_pairs)
    except ValueError as error:
        raise CheckpointError(f"{file} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        kind = "a string: JSON within JSON" if isinstance(value, str) else "no object"
        raise CheckpointError(f"{file} holds {kind}; store the object itself")
    return value


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor of the folder's safetensors files, by name."""
    if (folder / SINGLE_FILE).exists():
        return _tensors_of(folder, [folder / SINGLE_FILE])
    if (folder / INDEX).exists():
        return _indexed(folder)
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        others = sorted(
            file.name for pattern in ("*.bin", "*.pt", "*.pth", "*.gguf") for file in folder.glob(pattern)
        )
        found = f"it has {others[0]}, convert it with transformers' save_pretrained" if others else ""
        found = found or f"expected are {SINGLE_FILE}, or the files that a {INDEX} lists"
        raise CheckpointError(f"{folder} has no safetensors files; {found} (--model)")
    return _tensors_of(folder, files)


def read_index(folder: Path) -> dict[str, str]:
    """Tensor to file, as the folder's index says."""
    index = read_object(folder / INDEX).get("weight_map")
    if not isinstance(index, dict) or not all(isinstance(file, str) for file in index.values()):
        raise CheckpointError(f"{folder / INDEX} has no weight_map from tensors to files; get it again")
    return index


def some(names: list[str]) -> str:
    """The first name and how many more there are."""
    return names[0] if len(names) == 1 else f"{names[0]} (and {len(names) - 1} more)"


def _tensors_of(folder: Path, files: Iterable[Path]) -> dict[str, StoredTensor]:
    tensors: dict[str, StoredTensor] = {}
    for tensor in (tensor for file in files for tensor in read_header(file)):
        if tensor.name in tensors:
            both = f"{tensors[tensor.name].file.name} and {tensor.file.name}"
            raise CheckpointError(f"{folder}: {tensor.name} is in both {both}; remove one of them")
        tensors[tensor.name] = tensor
    return tensors


def _indexed(folder: Path) -> dict[str, StoredTensor]:
    """The tensors of the files that the index lists, each in the file that it says."""
    index = read_index(folder)
    absent = sorted(name for name in set(index.values()) if not (folder / name).is_file())
    if absent:
        raise CheckpointError(f"{folder} lacks {some(absent)}, which its index lists; get the missing files")
    tensors = _tensors_of(folder, [folder / file for file in sorted(set(index.values()))])
    for name, file in index.items():
        if name not in tensors or tensors[name].file.name != Path(file).name:
            elsewhere = f"it is in {tensors[name].file.name}" if name in tensors else "that file lacks it"
            raise CheckpointError(
                f"{folder}: {INDEX} says that {name} is in {file}, but {elsewhere}; get the index and the file again"
            )
    unlisted = [name for name in tensors if name not in index]
    if unlisted:
        raise CheckpointError(
            f"{folder}: {tensors[unlisted[0]].file.name} holds {some(unlisted)}, which {INDEX} does not list;"
            f" get the index again"
        )
    return tensors
