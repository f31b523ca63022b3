"""A dry run of a model of any size: what the loader makes of it on torch's meta device, and what a folder has.

Nothing is allocated and no weights are read. Problems are lines for people; none means that all is well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch

from splash.core.errors import CheckpointError
from splash.model.checkpoint import Checkpoint, canonical, checkpoint_config
from splash.model.folder import INDEX, read_index, some
from splash.model.loader import load_rank, load_shard
from splash.model.scales import find_scales
from splash.model.tensorfile import StoredTensor, read_header
from splash.model.unused import unused_tensors
from splash.spec.config import normalise
from splash.spec.fields import Fields
from splash.spec.model import ModelSpec
from splash.spec.quantisation import read_quantisation
from splash.spec.tensors import held_shape, model_tensors

META = "meta"


@dataclass(frozen=True, slots=True)
class RankCheck:
    """What the loader builds for one rank, with its own head shard."""

    rank: int
    params: int
    problems: tuple[str, ...]


def check_rank(spec: ModelSpec, *, rank: int, ranks: int) -> RankCheck:
    """Load `rank` on the meta device: every tensor must be asked for in just the part that the rank holds."""
    source = MetaCheckpoint(spec)
    shard = {
        (layer, name): torch.empty(shape, device=META)
        for layer in spec.attention_layers
        for name, shape in spec.shard_tensors(ranks)
    }
    try:
        weights = load_rank(source, rank=rank, ranks=ranks, dtype=torch.bfloat16, device=META)
        load_shard(source, ranks=ranks, shard=rank, out=shard)
    except (CheckpointError, RuntimeError) as error:  # torch: shapes that do not fit each other
        return RankCheck(rank, 0, (f"rank {rank} cannot be built: {error}",))
    expected = {
        tensor.name: prod(held_shape(spec, tensor, rank=rank, ranks=ranks)) for tensor in model_tensors(spec)
    }
    problems = [
        f"rank {rank} loads {source.read[name]} elements of {name}, it holds {size}"
        for name, size in expected.items()
        if source.read[name] != size
    ]
    params = sum(tensor.numel() for tensor in _tensors(weights)) + sum(map(torch.numel, shard.values()))
    if not problems and params != sum(expected.values()):
        problems.append(f"rank {rank} has {params} parameters, its tensors are {sum(expected.values())}")
    return RankCheck(rank, params, tuple(problems))


class MetaCheckpoint(Checkpoint):
    """A checkpoint of `spec` without bytes: tensors on the meta device, of which it counts what is asked for."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(Path(META), spec, {}, {}, None, ())
        self.read: Counter[str] = Counter()
        self._shapes = {tensor.name: tensor.shape for tensor in model_tensors(spec)}

    def slice(self, name: str, *, rows: range | None = None, columns: range | None = None) -> torch.Tensor:
        if name not in self._shapes:
            raise CheckpointError(f"the loader asks for {name}, which the model does not have")
        shape = list(self._shapes[name])
        for dim, part in enumerate((rows, columns)):
            if part is not None:
                if part.stop > shape[dim]:
                    raise CheckpointError(f"the loader asks for {part} of {name}, which has {shape}")
                shape[dim] = len(part)
        self.read[name] += prod(shape)
        return torch.empty(shape, device=META)


@dataclass(frozen=True, slots=True)
class FolderCheck:
    """A folder's model, everything that is wrong with its tensors, and what else is to be said."""

    spec: ModelSpec
    problems: tuple[str, ...]
    notes: tuple[str, ...]


def check_folder(folder: Path) -> FolderCheck:
    """Names and shapes of a folder's tensors against its config.json, all problems and not the first alone.

    An index whose files are not there yet is enough for the names. CheckpointError: no checkpoint or an unreadable
    file; ConfigError: a model or a quantisation that is not supported.
    """
    config, where = checkpoint_config(folder), str(folder / "config.json")
    spec = normalise(config, where=where)
    quantisation = read_quantisation(Fields(config, where))
    listed, problems, absent = _listed(folder)
    tensors = canonical(listed)
    unused = unused_tensors(spec, tensors)
    problems += _wrong_tensors(spec, tensors)
    problems += [f"extra: {name} is not part of the {spec.model_type} model" for name in unused.foreign]
    present = {name: stored for name, stored in tensors.items() if stored is not None}
    if not problems and len(present) == len(tensors):
        try:
            find_scales(folder, spec, quantisation, present)
        except CheckpointError as error:
            problems.append(str(error))
    notes = list(unused.notes)
    if absent:
        notes.append(f"{some(absent)} is not there: the shapes in it are not checked")
    return FolderCheck(spec, tuple(problems), tuple(notes))


def _wrong_tensors(spec: ModelSpec, tensors: Mapping[str, StoredTensor | None]) -> list[str]:
    problems = []
    for tensor in model_tensors(spec):
        if tensor.name not in tensors:
            problems.append(f"missing: {tensor.name} {list(tensor.shape)}")
            continue
        stored = tensors[tensor.name]
        if stored is not None and stored.shape != tensor.shape:
            problems.append(
                f"wrong shape: {tensor.name} is {list(stored.shape)} in {stored.file.name},"
                f" config.json asks for {list(tensor.shape)}"
            )
    return problems


def _listed(folder: Path) -> tuple[dict[str, StoredTensor | None], list[str], list[str]]:
    """Every tensor that the index or the files have, None where the file is absent; problems; absent files."""
    problems: list[str] = []
    index = read_index(folder) if (folder / INDEX).exists() else {}
    files = sorted({folder / file for file in index.values()} or set(folder.glob("*.safetensors")))
    if not files:
        raise CheckpointError(f"{folder} has neither safetensors files nor {INDEX}")
    tensors: dict[str, StoredTensor | None] = dict.fromkeys(index)
    for stored in (stored for file in files if file.is_file() for stored in read_header(file)):
        known = tensors.get(stored.name)
        if known is not None:
            problems.append(f"duplicate: {stored.name} is in {known.file.name} and {stored.file.name}")
        elif index and Path(index.get(stored.name, "nowhere")).name != stored.file.name:
            said = index.get(stored.name, "nowhere")
            problems.append(f"misplaced: {stored.name} is in {stored.file.name}, {INDEX} says {said}")
        tensors[stored.name] = stored
    absent = [file.name for file in files if not file.is_file()]
    problems += [
        f"missing: {name}, which {INDEX} says is in {file}"
        for name, file in index.items()
        if tensors[name] is None and file not in absent
    ]
    return tensors, problems, absent


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    """Every tensor of dataclasses and tuples; one that is named twice comes once."""
    seen: set[int] = set()

    def visit(node: Any) -> Iterator[torch.Tensor]:
        if isinstance(node, torch.Tensor):
            if id(node) not in seen:
                seen.add(id(node))
                yield node
        elif is_dataclass(node):
            for field in fields(node):
                yield from visit(getattr(node, field.name))
        elif isinstance(node, tuple):
            for child in node:
                yield from visit(child)

    return visit(tree)
