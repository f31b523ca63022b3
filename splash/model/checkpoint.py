"""A Hugging Face checkpoint folder: its configs and the headers of its safetensors files; tensors on demand.

Opening reads no weights and imports no torch. `Checkpoint.slice` maps a file and gives a view of the part that is
asked for, so that copying it reads just those bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from splash.core.errors import CheckpointError
from splash.model.generation import GenerationDefaults, read_generation
from splash.model.tensorfile import StoredTensor, read_header, unique_pairs
from splash.spec.config import normalise
from splash.spec.model import ModelSpec
from splash.spec.tensors import model_tensors

if TYPE_CHECKING:
    import torch

SINGLE_FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"
FLOATS = ("F64", "F32", "F16", "BF16")
"""Types in which weights can be stored; they are converted to the type that is computed in."""

_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")
_PREFIXES = (
    ("model.language_model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.", ""),
)
"""How multimodal checkpoints call their language model, and how a plain one calls it."""
_HARMLESS = ("rotary_emb.inv_freq",)
"""Tensors that old checkpoints have and nobody needs."""


class Checkpoint:
    """One folder, checked: `tensors` has every tensor of `spec`, of its shape, and no other decoder weight.

    Names are those of a plain causal model (`model.layers.0. ...`). Files stay mapped from the first `slice` to
    `close`; it is a context manager. Made by `open_checkpoint`.
    """

    def __init__(
        self,
        folder: Path,
        spec: ModelSpec,
        generation: GenerationDefaults,
        tensors: Mapping[str, StoredTensor],
    ) -> None:
        self.folder = folder
        self.spec = spec
        self.generation = generation
        self.tensors = tensors
        self._mapped: dict[Path, Any] = {}

    @property
    def num_bytes(self) -> int:
        """Bytes of the files that hold the tensors."""
        return sum(file.stat().st_size for file in {tensor.file for tensor in self.tensors.values()})

    def slice(self, name: str, *, rows: range | None = None, columns: range | None = None) -> torch.Tensor:
        """Part of a tensor as it is stored: a view of the mapped file, good until `close`.

        `rows` is a range of dim 0, `columns` of dim 1; None is all. Either may be empty. Not to be written to.
        """
        tensor = self.tensors[name]
        view = self._map(tensor.file).get_slice(tensor.name)
        every = slice(None)
        row_part = every if rows is None else slice(rows.start, rows.stop)
        if len(tensor.shape) < 2:
            return view[row_part]
        return view[row_part, every if columns is None else slice(columns.start, columns.stop)]

    def close(self) -> None:
        """Unmap the files. Views that `slice` gave keep theirs alive."""
        self._mapped.clear()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _map(self, file: Path) -> Any:
        if file not in self._mapped:
            from safetensors import safe_open

            self._mapped[file] = safe_open(file, framework="pt")
        return self._mapped[file]


def open_checkpoint(folder: str | Path) -> Checkpoint:
    """Open a checkpoint folder and check it against its config.

    CheckpointError: no such folder, no checkpoint, a truncated file, quantised weights, a tensor that is missing,
    of another shape, in two files, or foreign to the model; a file cannot be read. ConfigError: a model that is
    not supported.
    """
    folder = Path(folder)
    try:
        return _opened(folder)
    except OSError as error:
        raise CheckpointError(
            f"cannot read {error.filename or folder}: {error.strerror or error} (--model)"
        ) from None


def _opened(folder: Path) -> Checkpoint:
    config = _config(folder)
    spec = normalise(config, where=str(folder / "config.json"))
    generation_file = folder / "generation_config.json"
    generation = GenerationDefaults()
    if generation_file.exists():
        generation = read_generation(_object(generation_file), where=str(generation_file))
    spec = replace(spec, eos_token_ids=generation.eos_token_ids or spec.eos_token_ids)
    tensors = _canonical(_stored_tensors(folder))
    _check_quantisation(folder, config, tensors.values())
    _check_needed(folder, spec, tensors)
    _check_foreign(folder, spec, tensors)
    return Checkpoint(folder, spec, generation, tensors)


def _config(folder: Path) -> Mapping[str, Any]:
    if not folder.exists():
        hint = "; splash serves local folders, download the model first" if len(folder.parts) == 2 else ""
        raise CheckpointError(f"{folder} does not exist{hint} (--model)")
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is a file; --model wants the folder of a checkpoint")
    if not (folder / "config.json").exists():
        raise CheckpointError(f"{folder} is no checkpoint: it has no config.json (--model)")
    return _object(folder / "config.json")


def _object(file: Path) -> dict[str, Any]:
    """A JSON file that holds one object."""
    try:
        value = json.loads(file.read_bytes(), object_pairs_hook=unique_pairs)
    except ValueError as error:
        raise CheckpointError(f"{file} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        kind = "a string: JSON within JSON" if isinstance(value, str) else "no object"
        raise CheckpointError(f"{file} holds {kind}; store the object itself")
    return value


def _stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor of the folder's safetensors files: of the one file, the indexed ones, or all there are."""
    if (folder / SINGLE_FILE).exists():
        return {tensor.name: tensor for tensor in read_header(folder / SINGLE_FILE)}
    if (folder / INDEX).exists():
        return _indexed(folder)
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        others = sorted(
            file.name for pattern in ("*.bin", "*.pt", "*.pth", "*.gguf") for file in folder.glob(pattern)
        )
        found = f"; it has {others[0]}, convert it with transformers' save_pretrained" if others else ""
        raise CheckpointError(f"{folder} has no safetensors files{found}")
    tensors: dict[str, StoredTensor] = {}
    for tensor in (tensor for file in files for tensor in read_header(file)):
        if tensor.name in tensors:
            both = f"{tensors[tensor.name].file.name} and {tensor.file.name}"
            raise CheckpointError(
                f"{folder}: {tensor.name} is in both {both}; remove one file or add {INDEX}"
            )
        tensors[tensor.name] = tensor
    return tensors


def _indexed(folder: Path) -> dict[str, StoredTensor]:
    index = _object(folder / INDEX).get("weight_map")
    if not isinstance(index, dict) or not all(isinstance(file, str) for file in index.values()):
        raise CheckpointError(f"{folder / INDEX} has no weight_map from tensors to files; get it again")
    absent = sorted(name for name in set(index.values()) if not (folder / name).is_file())
    if absent:
        raise CheckpointError(f"{folder} lacks {_some(absent)}, which its index lists; get the missing files")
    headers = {file: {t.name: t for t in read_header(folder / file)} for file in sorted(set(index.values()))}
    missing = [name for name, file in index.items() if name not in headers[file]]
    if missing:
        raise CheckpointError(
            f"{folder}: {_some(missing)} is not in the file that {INDEX} names; get both again"
        )
    return {name: headers[file][name] for name, file in index.items()}


def _canonical(tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """The tensors under the names of a plain causal model."""
    for nested, plain in _PREFIXES:
        if any(name.startswith(nested) for name in tensors):
            tensors = {
                plain + name.removeprefix(nested) if name.startswith(nested) else name: tensor
                for name, tensor in tensors.items()
            }
    return dict(tensors)


def _check_quantisation(folder: Path, config: Mapping[str, Any], tensors: Iterable[StoredTensor]) -> None:
    method = config.get("quantization_config")
    odd = sorted({t.dtype for t in tensors if t.name.endswith(".weight")} - set(FLOATS))
    if method or odd:
        kind = method.get("quant_method") if isinstance(method, dict) else None
        raise CheckpointError(
            f"{folder} has quantised weights ({kind or ', '.join(odd) or 'quantization_config'}), which are not"
            f" supported; use a release in bfloat16, float16 or float32"
        )


def _check_needed(folder: Path, spec: ModelSpec, tensors: Mapping[str, StoredTensor]) -> None:
    needed = {tensor.name: tensor.shape for tensor in model_tensors(spec)}
    missing = [name for name in needed if name not in tensors]
    if missing == ["lm_head.weight"]:
        raise CheckpointError(
            f"{folder} has no lm_head.weight; if its embeddings are tied, set tie_word_embeddings in config.json"
        )
    if missing:
        raise CheckpointError(
            f"{folder}: {_some(missing)} is missing; a file is, or config.json describes another model"
        )
    for name, shape in needed.items():
        if tensors[name].shape != shape:
            raise CheckpointError(
                f"{folder}: {name} has shape {list(tensors[name].shape)}, config.json asks for {list(shape)}"
            )


def _check_foreign(folder: Path, spec: ModelSpec, tensors: Mapping[str, StoredTensor]) -> None:
    """Refuse decoder weights that the model would not use; multi-token prediction layers at its end are."""
    needed = {tensor.name for tensor in model_tensors(spec)} | {"lm_head.weight"}
    drafts = {
        match[1] for name in tensors if (match := _LAYER.fullmatch(name)) and match[2] == "eh_proj.weight"
    }
    foreign = [
        name
        for name in tensors
        if (match := _LAYER.fullmatch(name))
        and name not in needed
        and not (int(match[1]) >= spec.num_layers and match[1] in drafts)
        and not name.endswith(_HARMLESS)
    ]
    if foreign:
        raise CheckpointError(
            f"{folder}: {_some(foreign)} is not part of the {spec.model_type} model that config.json describes"
        )


def _some(names: list[str]) -> str:
    """The first name and how many more there are."""
    return names[0] if len(names) == 1 else f"{names[0]} (and {len(names) - 1} more)"
