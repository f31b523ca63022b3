"""Mailboxes between threads: what they say about a rank that does not come, and messages that do not fit."""

import pytest
import torch
from splash_cpu import mailboxes
from splash_cpu.mailboxes import MailboxCommunicator

from splash.core.errors import CapacityError, RankFailure
from splash.hal.threads import ThreadCommunicator, run_ranks


def over(comm: ThreadCommunicator, timeout_s: float = 30.0) -> MailboxCommunicator:
    return MailboxCommunicator(comm, spin=False, timeout_s=timeout_s)


def test_a_missing_rank_is_a_timeout_that_names_it() -> None:
    """Red when a rank that skips a collective hangs the rest without a word."""

    def run(comm: ThreadCommunicator) -> None:
        boxes = over(comm, timeout_s=0.1)
        boxes.barrier()
        if comm.rank != 1:
            boxes.all_reduce(torch.ones(2, 3))

    with pytest.raises(
        RankFailure, match=r"collective 2 \(all_reduce of 6 float32\).* for rank 1, which is at collective 1"
    ):
        run_ranks(3, run)


def test_counts_that_disagree_are_named() -> None:
    """Red when a rank takes another number of elements than it was sent."""

    def run(comm: ThreadCommunicator) -> None:
        over(comm).all_to_all_v(torch.ones(4), [2, 2], [2, 2] if comm.rank else [2, 3])

    with pytest.raises(RankFailure, match="rank 0 expects 3 elements of rank 1, which sent 2"):
        run_ranks(2, run)


def test_a_message_that_does_not_fit_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when a large message writes past its mailbox."""
    monkeypatch.setattr(mailboxes, "BOX_BYTES", 1 << 20)
    with pytest.raises(CapacityError, match="2 MiB exceeds a mailbox of 1 MiB"):
        run_ranks(2, lambda comm: over(comm).all_reduce(torch.ones(1 << 19)))


def test_views_of_many_shapes_are_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when every shape that ever occurred stays in memory, or a dropped view loses data."""
    monkeypatch.setattr(mailboxes, "MAX_VIEWS", 4)

    def run(comm: ThreadCommunicator) -> None:
        boxes = over(comm)
        for size in range(1, 30):
            assert boxes.all_reduce(torch.ones(size)).tolist() == [2.0] * size
        assert len(boxes._views) <= 4

    run_ranks(2, run)
