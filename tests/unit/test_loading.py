"""Loading large checkpoints: a rank reads its own parts of its own files, and a bar shows how far all ranks are."""

from __future__ import annotations

import io
import json
from functools import partial
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file

from splash.cli.loading import LoadingBar
from splash.model.checkpoint import Checkpoint, open_checkpoint
from splash.model.folder import INDEX, SINGLE_FILE
from splash.model.loader import load_rank, load_shard
from splash.spec.tensors import rank_bytes
from tests.conftest import QuantisedMaker, TinyMaker
from tests.unit.loading_kit import slot_views


def _load(checkpoint: Checkpoint, rank: int, ranks: int) -> int:
    """Loads everything of a rank; the bytes that were read for it."""
    before = checkpoint.bytes_sliced
    slot = slot_views(checkpoint.spec, ranks, torch.float32)
    load_rank(checkpoint, rank=rank, ranks=ranks, dtype=torch.float32)
    load_shard(checkpoint, ranks=ranks, shard=rank, out=slot)
    return checkpoint.bytes_sliced - before


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("kind", ["deepseek_v3", "llama", "qwen3_moe"])
def test_a_rank_reads_the_bytes_that_it_holds(tiny: TinyMaker, kind: str, ranks: int) -> None:
    """Red when a rank reads a tensor whole, or twice, of which it holds a part."""
    with open_checkpoint(tiny(kind)) as checkpoint:
        for rank in range(ranks):
            held = rank_bytes(checkpoint.spec, rank=rank, ranks=ranks, itemsize=4)
            assert _load(checkpoint, rank, ranks) == held


def test_quantised_parts_read_a_quarter_and_the_scales_that_cover_them(
    quantised_tiny: QuantisedMaker,
) -> None:
    """Red when all scales are read for a part, or the elements as floats."""
    made = quantised_tiny("deepseek_v3_odd", "fp8_small_blocks")
    with open_checkpoint(made.folder) as checkpoint:
        checkpoint.slice("model.layers.0.mlp.up_proj.weight", rows=range(47, 50), columns=range(10, 60))
        assert checkpoint.bytes_sliced == 3 * 50 + 4 * 2 * 2


def test_files_of_other_ranks_are_never_opened(tiny: TinyMaker, tmp_path: Path) -> None:
    """Red when a rank maps files that it has no part of: with hundreds of files each would read all of them."""
    folder = _one_file_a_tensor(tiny("deepseek_v3"), tmp_path)
    assert len(list(folder.glob("*.safetensors"))) > 60
    with open_checkpoint(folder) as checkpoint:
        for name, tensor in checkpoint.tensors.items():
            if any(f".mlp.experts.{expert}." in name for expert in range(4, 8)):
                tensor.file.unlink()  # experts of the other rank
        assert _load(checkpoint, 0, 2) == rank_bytes(checkpoint.spec, rank=0, ranks=2, itemsize=4)
        with pytest.raises(FileNotFoundError):
            _load(checkpoint, 1, 2)


def _one_file_a_tensor(source: Path, folder: Path) -> Path:
    tensors = load_file(source / SINGLE_FILE)
    weight_map = {name: f"model-{place:05}.safetensors" for place, name in enumerate(tensors)}
    for name, file in weight_map.items():
        save_file({name: tensors[name]}, folder / file)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (folder / "config.json").write_text((source / "config.json").read_text())
    return folder


def test_layers_are_announced(tiny: TinyMaker) -> None:
    """Red when the ranks announce different numbers of layers: the engine waits for one message from each."""
    with open_checkpoint(tiny("llama")) as checkpoint:
        for rank in range(2):
            announced: list[None] = []
            load = partial(load_rank, checkpoint, rank=rank, ranks=2, dtype=torch.float32)
            load(loaded=partial(announced.append, None))
            assert len(announced) == checkpoint.spec.num_layers


# ---- the bar


def _shown(*, plain: bool = False, terminal: bool = True, layer_s: float = 1.0) -> str:
    """What four layers that take `layer_s` each write to a console."""
    now_s, out = 0.0, io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=80)
    with LoadingBar(4, plain=plain, console=console, now_s=lambda: now_s) as bar:
        for layer in range(1, 5):
            now_s += layer_s
            bar(layer)
    return out.getvalue()


def test_a_bar_for_long_loading_only() -> None:
    """Red when a short load flickers, a long one is silent, or the bar ends up in a file or under --no-tui."""
    assert "4/4" in _shown()
    assert "layers" in _shown()
    assert _shown(layer_s=0.4) == ""
    assert _shown(plain=True) == ""
    assert _shown(terminal=False) == ""
