"""A Hugging Face checkpoint folder: its configs and the headers of its safetensors files; tensors on demand.

Opening reads no weights and imports no torch. `Checkpoint.slice` maps a file and gives a view of the part that is
asked for, so that copying it reads just those bytes; of a quantised tensor it is the numbers that it means.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from splash.core.errors import CheckpointError, closest
from splash.model.folder import folder_errors, read_object, some, stored_tensors
from splash.model.generation import end_of_text
from splash.model.scales import find_scales
from splash.model.tensorfile import StoredTensor
from splash.model.unused import unused_tensors
from splash.spec.config import normalise
from splash.spec.fields import Fields
from splash.spec.known import known_models
from splash.spec.model import ModelSpec
from splash.spec.quantisation import Quantisation, read_quantisation
from splash.spec.tensors import model_tensors

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

_PREFIXES = (
    ("model.language_model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.", ""),
)
"""How multimodal checkpoints call their language model, and how a plain one calls it."""


class Checkpoint:
    """One folder, checked: `tensors` has every tensor of `spec`, of its shape, and no other decoder weight.

    Names are those of a plain causal model (`model.layers.0. ...`). `scales` has the scales of each quantised tensor
    under the tensor's name; `notes` say what is in the folder and not used, a line each. Files stay mapped from the
    first `slice` to `close`; it is a context manager. Made by `open_checkpoint`.
    """

    def __init__(
        self,
        folder: Path,
        spec: ModelSpec,
        tensors: Mapping[str, StoredTensor],
        scales: Mapping[str, StoredTensor],
        quantisation: Quantisation | None,
        notes: tuple[str, ...],
    ) -> None:
        self.folder = folder
        self.spec = spec
        self.tensors = tensors
        self.scales = scales
        self.quantisation = quantisation
        self.notes = notes
        self.bytes_sliced = 0
        """Bytes of the files that `slice` was asked for so far."""
        self._mapped: dict[Path, Any] = {}

    @property
    def num_bytes(self) -> int:
        """Bytes of the files that hold the tensors."""
        return sum(file.stat().st_size for file in {tensor.file for tensor in self.tensors.values()})

    def slice(self, name: str, *, rows: range | None = None, columns: range | None = None) -> torch.Tensor:
        """Part of a tensor: a view of the mapped file, good until `close`; a quantised one as new float32 numbers.

        `rows` is a range of dim 0, `columns` of dim 1; None is all. Either may be empty. Not to be written to.
        """
        tensor = self.tensors[name]
        if name not in self.scales:
            return self._stored(tensor, rows, columns)
        rows = range(tensor.shape[0]) if rows is None else rows
        columns = range(tensor.shape[1]) if columns is None else columns
        return self._dequantised(name, rows, columns)

    def _dequantised(self, name: str, rows: range, columns: range) -> torch.Tensor:
        """A part of a quantised matrix, of whose scales only those that cover it are read."""
        from splash.model.dequantise import covering, dequantised, scale_values

        assert self.quantisation is not None
        tile, scale = (self.quantisation.rows, self.quantisation.columns), self.scales[name]
        down, across = covering(rows, tile[0]), covering(columns, tile[1])
        scales = self._stored(scale, down if scale.shape else None, across)
        return dequantised(
            self._stored(self.tensors[name], rows, columns),
            scale_values(scales).reshape(len(down), len(across)),
            rows=rows,
            columns=columns,
            tile=tile,
        )

    def _stored(self, tensor: StoredTensor, rows: range | None, columns: range | None) -> torch.Tensor:
        """Part of a tensor as the file has it."""
        view = self._map(tensor.file).get_slice(tensor.name)
        parts = [slice(None) if part is None else slice(part.start, part.stop) for part in (rows, columns)]
        found: torch.Tensor = view[tuple(parts[: len(tensor.shape)])] if tensor.shape else view[...]
        self.bytes_sliced += found.numel() * found.itemsize
        return found

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

    CheckpointError: no such folder, no checkpoint, a truncated file, a tensor that is missing, of another shape, in
    two files, quantised otherwise than config.json says, or foreign to the model; a file cannot be read.
    ConfigError: a model or a quantisation that is not supported.
    """
    folder = Path(folder)
    with folder_errors(folder):
        return _opened(folder)


EXPECTED = "expected are config.json, *.safetensors and for text tokenizer.json"


def _opened(folder: Path) -> Checkpoint:
    config, where = checkpoint_config(folder), str(folder / "config.json")
    spec = normalise(config, where=where)
    quantisation = read_quantisation(Fields(config, where))
    spec = replace(spec, eos_token_ids=end_of_text(folder) or spec.eos_token_ids)
    tensors = canonical(stored_tensors(folder))
    _check_needed(folder, spec, tensors)
    scales = find_scales(folder, spec, quantisation, tensors)
    notes = _notes(folder, spec, tensors)
    if quantisation is not None and not scales:
        notes += (f"config.json says {quantisation.name}, but no weight is stored so",)
    return Checkpoint(folder, spec, tensors, scales, quantisation, notes)


def checkpoint_config(folder: Path) -> Mapping[str, Any]:
    """The folder's config.json; CheckpointError if it is no checkpoint folder."""
    if not folder.exists():
        hint = closest(folder.name, known_models()) if len(folder.parts) == 1 else ""
        hint += "; splash serves local folders, download the model first" if len(folder.parts) == 2 else ""
        raise CheckpointError(f"{folder} does not exist{hint} (--model)")
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is a file; --model wants the folder of a checkpoint")
    if not (folder / "config.json").exists():
        raise CheckpointError(f"{folder} is no checkpoint: it has no config.json; {EXPECTED} (--model)")
    return read_object(folder / "config.json")


def canonical(tensors: Mapping[str, T]) -> dict[str, T]:
    """Tensors, whatever is known of each, under the names of a plain causal model."""
    for nested, plain in _PREFIXES:
        if any(name.startswith(nested) for name in tensors):
            tensors = {
                plain + name.removeprefix(nested) if name.startswith(nested) else name: tensor
                for name, tensor in tensors.items()
            }
    return dict(tensors)


def _check_needed(folder: Path, spec: ModelSpec, tensors: Mapping[str, StoredTensor]) -> None:
    needed = {tensor.name: tensor.shape for tensor in model_tensors(spec)}
    missing = [name for name in needed if name not in tensors]
    if missing == ["lm_head.weight"]:
        raise CheckpointError(
            f"{folder} has no lm_head.weight; if its embeddings are tied, set tie_word_embeddings in config.json"
        )
    if missing:
        raise CheckpointError(
            f"{folder}: {some(missing)} is missing; a file is, or config.json describes another model"
        )
    for name, shape in needed.items():
        if tensors[name].shape != shape:
            raise CheckpointError(
                f"{folder}: {name} has shape {list(tensors[name].shape)}, config.json asks for {list(shape)}"
            )


def _notes(folder: Path, spec: ModelSpec, tensors: Mapping[str, StoredTensor]) -> tuple[str, ...]:
    """What is left unused, a line each; refuses decoder weights of another model."""
    unused = unused_tensors(spec, tensors)
    if unused.foreign:
        raise CheckpointError(
            f"{folder}: {some(list(unused.foreign))} is not part of the {spec.model_type} model that config.json"
            f" describes"
        )
    return unused.notes
