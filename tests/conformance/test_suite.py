"""The shipped suite on the ports that need no accelerator."""

import pytest
from splash_cpu import SPEC

from splash.hal.conformance import run
from splash.hal.inproc import InProcessBackend


def failures(results):
    return [f"{r.name}: {r.detail}" for r in results if r.outcome == "failed"]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_threads(ranks: int) -> None:
    """Red when the in-process backend breaks the contract that it stands in for."""
    assert not failures(run(InProcessBackend(), ranks))


@pytest.mark.ranks
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_cpu(ranks: int) -> None:
    """Red when the CPU port breaks the contract."""
    assert not failures(run(SPEC.loader(), ranks))
