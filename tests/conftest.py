"""Fixtures that several folders of tests use."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import pytest

with suppress(ImportError):
    import torch

    torch.set_num_threads(
        1
    )  # ranks are threads of one process here: more threads each only get in each other's way


class TinyMaker(Protocol):
    """Gives the folder of a tiny checkpoint; each combination of keywords is made once a session."""

    def __call__(self, kind: str, **options: Any) -> Path: ...


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyMaker:
    """`tiny("llama", kv_heads=4, seed=1)` -> folder; the keywords are those of `tests.tiny.make_tiny`."""
    pytest.importorskip("transformers", reason="transformers makes the checkpoints and is the oracle")
    from tests.tiny import make_tiny

    made: dict[str, Path] = {}

    def make(kind: str, **options: Any) -> Path:
        key = repr((kind, sorted(options.items())))
        if key not in made:
            made[key] = make_tiny(kind, tmp_path_factory.mktemp(kind), **options)
        return made[key]

    return make
