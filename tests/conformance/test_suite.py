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


@pytest.mark.parametrize("port", ["threads", pytest.param("cpu", marks=pytest.mark.ranks)])
def test_messages_wait_in_order(port: str) -> None:
    """Red when a message is lost, or overtaken, that comes while another one is still worked on (ADR 0014)."""
    backend = InProcessBackend() if port == "threads" else SPEC.loader()
    job = backend.launch(2, "tests.conformance.entries:serve", None)
    told = [("wait", None), *range(20)]
    for message in told:
        job.send(message)
    answers = [job.receive(60) for _ in told]
    assert [[answer[3] for answer in ranks] for ranks in answers] == [[message] * 2 for message in told]
    job.close()


@pytest.mark.ranks
def test_cpu_collectives_over_mpi() -> None:
    """Red when the communicator that is used where stores may be reordered breaks the contract."""
    job = SPEC.loader().launch(3, "tests.conformance.entries:serve_checks_over_mpi", None)
    for name in check_names():
        if name.startswith("collectives:"):
            job.send(name)
            assert job.receive(60) == [None] * 3
    job.close()
