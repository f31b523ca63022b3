"""Fixtures that several folders of tests use."""

from __future__ import annotations

import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from tests.quantised import Made

with suppress(ImportError):
    import torch

    torch.set_num_threads(
        1
    )  # ranks are threads of one process here: more threads each only get in each other's way


signal.signal(signal.SIGINT, signal.default_int_handler)
"""Also where tests run in the background, whose processes ignore it: some tests interrupt what they start."""

settings.register_profile("splash", deadline=None)  # no test asserts a time: others run beside it
settings.load_profile("splash")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that start MPI processes run one after the other, in one of the processes that share the tests: some look
    at everything that a job leaves on the machine."""
    for item in items:
        if item.get_closest_marker("ranks"):
            item.add_marker(pytest.mark.xdist_group("ranks"))


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


class QuantisedMaker(Protocol):
    """Gives a quantised copy of a tiny checkpoint and its plain twin; each pair is made once a session."""

    def __call__(self, model: str, scheme: str) -> Made: ...


@pytest.fixture(scope="session")
def quantised_tiny(tiny: TinyMaker, tmp_path_factory: pytest.TempPathFactory) -> QuantisedMaker:
    """`quantised_tiny("deepseek_v3", "fp8")`: the names are those of MODELS and SCHEMES in `tests.quantised`."""
    from tests.quantised import MODELS, SCHEMES, quantise

    made: dict[tuple[str, str], Made] = {}

    def make(model: str, scheme: str) -> Made:
        if (model, scheme) not in made:
            kind, options = MODELS[model]
            target = tmp_path_factory.mktemp(f"{model}-{scheme}")
            made[model, scheme] = quantise(tiny(kind, **options), target, SCHEMES[scheme])
        return made[model, scheme]

    return make
