"""Ranks as threads: collectives, checks, failures and closing."""

import threading

import pytest
import torch

from splash.core.errors import CheckpointError, RankFailure
from splash.hal.inproc import InProcessBackend
from splash.hal.protocol import ByteCopy, JobClosed, RankContext
from splash.hal.threads import ThreadCommunicator, run_ranks


def echo(context: RankContext, args: dict) -> None:
    """Answers every message with (rank, args, message, sum of ranks)."""
    while True:
        message = context.receive()
        total = context.comm.all_reduce(torch.tensor([context.rank]))
        context.send((context.rank, args, message, int(total)))


def raises(context: RankContext, args: Exception) -> None:
    context.receive()
    if context.rank == 1:
        raise args
    context.comm.barrier()


def ends(context: RankContext, args: None) -> None:
    context.receive()
    if context.rank == 0:
        context.comm.barrier()


def silent(context: RankContext, args: None) -> None:
    context.receive()
    context.receive()


def test_messages_reach_every_rank_and_come_back_in_rank_order() -> None:
    """Red when an answer is lost, reordered, or args are not handed over."""
    job = InProcessBackend().launch(3, f"{__name__}:echo", {"a": 1})
    job.send("x")
    job.send("y")
    assert job.receive(10) == [(r, {"a": 1}, "x", 3) for r in range(3)]
    assert job.receive(10) == [(r, {"a": 1}, "y", 3) for r in range(3)]
    job.close()
    job.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("rank-")]


@pytest.mark.parametrize("error", [CheckpointError("no such folder"), ValueError("boom")])
def test_an_exception_in_a_rank_ends_all_of_them(error: Exception) -> None:
    """Red when the others hang in a collective, or the engine does not learn why."""
    job = InProcessBackend().launch(3, f"{__name__}:raises", error)
    job.send(None)
    expected = CheckpointError if isinstance(error, CheckpointError) else RankFailure
    with pytest.raises(expected, match=str(error)) as caught:
        job.receive(10)
    if expected is RankFailure:
        assert "rank 1" in str(caught.value)
        assert "Traceback" in str(caught.value)
    job.close()


def test_a_rank_that_ends_early_is_a_failure() -> None:
    """Red when a returning entry leaves the others in a collective for ever."""
    job = InProcessBackend().launch(2, f"{__name__}:ends", None)
    job.send(None)
    with pytest.raises(RankFailure, match="rank 1 ended"):
        job.receive(10)
    job.close()


def test_receive_times_out_and_names_the_ranks() -> None:
    """Red when the engine waits for ever for a silent rank."""
    job = InProcessBackend().launch(2, f"{__name__}:silent", None)
    job.send(None)
    with pytest.raises(RankFailure, match=r"ranks \[0, 1\]"):
        job.receive(0.05)
    job.close()


def test_differing_collectives_raise_on_all_ranks_and_name_them() -> None:
    """Red when one rank may enter another collective, or another shape, unnoticed."""
    seen: dict[int, str] = {}

    def run(comm: ThreadCommunicator) -> None:
        try:
            comm.barrier()
            if comm.rank == 0:
                comm.all_reduce(torch.zeros(3))
            else:
                comm.all_gather(torch.zeros(3))
        except RankFailure as error:
            seen[comm.rank] = str(error)

    run_ranks(3, run)
    assert len(seen) == 3
    assert len(set(seen.values())) == 1
    assert "collective 1" in seen[0]
    assert "all_reduce[3] float32" in seen[0]
    assert "all_gather[3] float32" in seen[0]


def test_a_missing_rank_is_a_timeout_that_names_it() -> None:
    """Red when a rank that skips a collective (an idle one, say) hangs the rest."""
    with pytest.raises(RankFailure, match=r"all_reduce\[2\] float32.*\[1\]"):
        run_ranks(2, lambda comm: comm.rank == 0 and comm.all_reduce(torch.zeros(2)), timeout_s=0.1)


def test_copies_and_pools() -> None:
    """Red when a copy lands elsewhere, is not acknowledged, or a peer is another's memory."""
    backend = InProcessBackend()

    def run(comm: ThreadCommunicator) -> tuple[int, ...]:
        pool = backend.pool(comm, 4096)
        pool.bytes.fill_(comm.rank + 1)
        copier = backend.copier(comm, pool)
        comm.barrier()
        copier.submit(
            [ByteCopy(7, 0, 1, ((0, 100, 10), (0, 200, 1))), ByteCopy(8, 1, 0, ((0, 0, 4096),))][:1]
        )
        comm.barrier()
        assert int(pool.peer(1)[100:110].sum()) == 10
        assert int(pool.peer(1).sum()) == 2 * 4096 - 11
        assert int(pool.bytes[0]) == comm.rank + 1
        return copier.poll().ids

    assert run_ranks(2, run) == [(), (7,)]


def notes_closing(context: RankContext, args: None) -> None:
    try:
        context.receive()
    except JobClosed:
        CLOSED.append(context.rank)
        raise


CLOSED: list[int] = []


def test_closing_is_seen_by_the_ranks() -> None:
    """Red when an entry that waits for a message is not told that there will be none."""
    job = InProcessBackend().launch(2, f"{__name__}:notes_closing", None)
    job.close()
    assert sorted(CLOSED) == [0, 1]
