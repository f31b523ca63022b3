"""The shipped suite on the ports that need no accelerator."""

import pytest
from splash_cpu import SPEC

from splash.hal.conformance import run
from splash.hal.conformance.suite import check_names
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


@pytest.mark.ranks
def test_cpu_collectives_over_mpi() -> None:
    """Red when the communicator that is used where stores may be reordered breaks the contract."""
    job = SPEC.loader().launch(3, "tests.conformance.entries:serve_checks_over_mpi", None)
    for name in check_names():
        if name.startswith("collectives:"):
            job.send(name)
            assert job.receive(60) == [None] * 3
    job.close()
