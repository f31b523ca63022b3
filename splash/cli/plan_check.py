"""The dry run of `splash plan --check`: done, shown, and as JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from splash.layout.layouts import LAYOUTS, Projection
from splash.sim.presets import usual_ranks
from splash.spec.known import known_model, known_models
from splash.spec.model import ModelSpec
from splash.spec.storage import WEIGHT_STORAGES, index_gain, kv_storage, rank_weight_bytes, token_bytes
from splash.spec.tensors import Part, held_shape, model_tensors, num_params
from splash.tui.units import show_bytes

if TYPE_CHECKING:
    from rich.console import Console

MOST_SHOWN = 20
"""Problems; JSON has all."""


@dataclass(frozen=True, slots=True)
class Checked:
    """A model on `ranks` ranks: its parts, and what is wrong with them."""

    name: str
    spec: ModelSpec
    ranks: int
    folder: Path | None
    params_per_rank: tuple[int, ...]
    """As they were built, with the own head shard alone."""
    problems: tuple[str, ...]
    notes: tuple[str, ...]


def check_model(model: str, ranks: int | None) -> Checked:
    """Check a model by name, or a folder's; with a progress bar where ranks are many."""
    from rich.console import Console
    from rich.progress import track

    from splash.model.check import FolderCheck, check_folder, check_rank

    folder = _folder(model)
    found = FolderCheck(known_model(model), (), ()) if folder is None else check_folder(folder)
    spec, problems = found.spec, found.problems
    ranks = ranks or usual_ranks(spec)
    spec.check_ranks(ranks)
    console = Console(stderr=True)
    bar = track(
        range(ranks), "building ranks", console=console, transient=True, disable=not console.is_terminal
    )
    built = [check_rank(spec, rank=rank, ranks=ranks) for rank in bar]
    problems += tuple(problem for rank in built for problem in rank.problems)
    return Checked(model, spec, ranks, folder, tuple(rank.params for rank in built), problems, found.notes)


def _folder(model: str) -> Path | None:
    """The folder that is meant; a known name wins over a folder in the present directory."""
    folder = Path(model)
    is_folder = folder.exists() or len(folder.parts) > 1
    return folder if is_folder and model not in known_models() else None


def as_json(checked: Checked) -> dict[str, Any]:
    """All figures, bytes in whole numbers; weights by type and layout."""
    spec, ranks, weights = checked.spec, checked.ranks, _weights(checked)
    return {
        "model_type": spec.model_type,
        "ranks": ranks,
        "num_params": num_params(spec),
        "params_per_rank": list(checked.params_per_rank),
        "parts": {
            part.value: {"num_params": whole, "per_rank": held} for part, whole, held in _parts(checked)
        },
        "layouts": {
            name: {"weight_bytes_per_rank": {dtype: sizes[name] for dtype, sizes in weights.items()}}
            for name in LAYOUTS
        },
        "kv_bytes_per_token": _kv(checked),
        "index_layers": _index_layers(spec),
        "index_gain": _index_gain(checked),
        "state_bytes_per_request_and_rank": spec.state_bytes(ranks, 2),
        "kda_saving_bytes_per_rank": _kda_saving(checked),
        "problems": list(checked.problems),
        "notes": list(checked.notes),
    }


def show(checked: Checked) -> None:
    """Tables on standard output."""
    from rich.console import Console

    console, spec = Console(highlight=False), checked.spec
    console.print(
        f"[bold]{checked.name}[/]: {spec.model_type}, {spec.num_layers} layers, {_billions(num_params(spec))}"
    )
    _show_parts(console, checked)
    _show_weights(console, checked)
    _show_kv(console, checked)
    for note in checked.notes:
        console.print(note, soft_wrap=True, markup=False)
    for problem in checked.problems[:MOST_SHOWN]:
        console.print(problem, style="red", soft_wrap=True, markup=False)
    if len(checked.problems) > MOST_SHOWN:
        console.print(f"and {len(checked.problems) - MOST_SHOWN} more problems (--json has all)", style="red")
    if not checked.problems:
        where = "" if checked.folder is None else "the folder has every tensor in its shape; "
        console.print(
            f"{where}{checked.ranks} ranks built, every tensor lies where it belongs",
            style="green",
            soft_wrap=True,
        )


def _show_parts(console: Console, checked: Checked) -> None:
    table = _table("part", "parameters", f"on a rank of {checked.ranks}")
    for part, whole, held in _parts(checked):
        table.add_row(part.value, _billions(whole), _billions(held))
    console.print(table)


def _show_weights(console: Console, checked: Checked) -> None:
    own = ", ".join(name for name, layout in LAYOUTS.items() if layout.projection is Projection.SHARDED)
    full = ", ".join(name for name, layout in LAYOUTS.items() if layout.projection is Projection.FULL)
    table = _table(f"weights on a rank of {checked.ranks}", own, full)
    for dtype, sizes in _weights(checked).items():
        table.add_row(dtype, show_bytes(sizes["tp"]), show_bytes(sizes["dp"]))
    console.print(table)


def _show_kv(console: Console, checked: Checked) -> None:
    spec, sizes = checked.spec, _kv(checked)
    console.print(
        "KV bytes per token: " + ", ".join(f"{size:,.0f} with {dtype}" for dtype, size in sizes.items())
    )
    if spec.indexer is not None:
        gain = f": {_index_gain(checked):.0%} more tokens than with them on all that attend"
        console.print(
            f"index keys on {len(_index_layers(spec))} of {spec.num_layers} layers"
            f"{gain if _index_gain(checked) else ''}",
            soft_wrap=True,
        )
    if spec.kda is not None:
        console.print(
            f"{len(spec.kda_layers)} recurrent layers, sharded by head:"
            f" {show_bytes(spec.state_bytes(checked.ranks, 2))} a request on each rank,"
            f" {_kda_saving(checked) / 2**30:.2f} GiB of INT8 weights less there than whole",
            soft_wrap=True,
        )


def _table(*columns: str) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    return table


def _parts(checked: Checked) -> list[tuple[Part, int, int]]:
    """(part, parameters of the model, those on the fullest rank with its own head shard)."""
    spec, last = checked.spec, checked.ranks - 1
    whole: Counter[Part] = Counter()
    held: Counter[Part] = Counter()
    for tensor in model_tensors(spec):
        whole[tensor.part] += tensor.num_params
        held[tensor.part] += prod(held_shape(spec, tensor, rank=last, ranks=checked.ranks))
    return [(part, whole[part], held[part]) for part in Part if whole[part]]


def _weights(checked: Checked) -> dict[str, dict[str, int]]:
    """Bytes of the weights on the fullest rank, by type and layout."""
    sizes = {}
    for name, storage in WEIGHT_STORAGES.items():
        weights = rank_weight_bytes(checked.spec, storage, ranks=checked.ranks)
        sizes[name] = {
            layout.name: weights.full if layout.projection is Projection.FULL else weights.own
            for layout in LAYOUTS.values()
        }
    return sizes


def _kv(checked: Checked) -> dict[str, float]:
    """Bytes of one token in all KV groups, by type of KV."""
    groups = checked.spec.kv_groups(checked.ranks)
    return {
        dtype: groups * token_bytes(checked.spec, kv_storage(dtype), ranks=checked.ranks)
        for dtype in ("bfloat16", "fp8")
    }


def _index_layers(spec: ModelSpec) -> list[int]:
    return [layer for layer in range(spec.num_layers) if spec.has_indexer(layer)]


def _index_gain(checked: Checked) -> float:
    return index_gain(checked.spec, kv_storage("fp8"), ranks=checked.ranks)


def _kda_saving(checked: Checked) -> int:
    """Bytes of INT8 weights that a rank does not have because recurrent layers are sharded by head."""
    whole, held = (
        rank_weight_bytes(checked.spec, WEIGHT_STORAGES["int8"], ranks=ranks).parts.get(Part.KDA, 0)
        for ranks in (1, checked.ranks)
    )
    return whole - held


def _billions(params: int) -> str:
    if params >= 1e7:
        return f"{params / 1e9:,.2f} B"
    return f"{params / 1e6:,.2f} M" if params >= 1e4 else f"{params:,}"
