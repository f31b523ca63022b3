"""Debug mode: what a rank enters is what the plan says, and what should be the same on all ranks is."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from splash.hal.protocol import Communicator
from splash.layout.exchange import Collective


class CheckedCommunicator:
    """A communicator that asserts every collective against a list, while it has one."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self._expected: deque[Collective] | None = None
        self._seq = 0

    @property
    def rank(self) -> int:
        return self._comm.rank

    @property
    def size(self) -> int:
        return self._comm.size

    def expect(self, listed: Iterable[Collective]) -> None:
        """What comes next, until `done`."""
        self._expected = deque(listed)
        self._seq = 0

    def done(self) -> None:
        left, self._expected = self._expected, None
        assert not left, f"rank {self.rank} did not enter {len(left)} collectives, the next is {left[0]}"

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        self._check("all_reduce", [x.numel()], [x.numel()])
        return self._comm.all_reduce(x)

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        self._check("all_gather", [x.numel()], [x.numel()])
        return self._comm.all_gather(x)

    def all_gather_v(self, x: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        width = x.shape[1:].numel()
        self._check("all_gather_v", [x.numel()] * self.size, [count * width for count in counts])
        return self._comm.all_gather_v(x, counts)

    def all_to_all_v(
        self, send: torch.Tensor, send_counts: Sequence[int], recv_counts: Sequence[int]
    ) -> torch.Tensor:
        self._check("all_to_all_v", list(send_counts), list(recv_counts))
        return self._comm.all_to_all_v(send, send_counts, recv_counts)

    def broadcast(self, x: torch.Tensor, root: int) -> torch.Tensor:
        self._check("broadcast", [x.numel()], [x.numel()])
        return self._comm.broadcast(x, root)

    def reduce_scatter(self, x: torch.Tensor) -> torch.Tensor:
        self._check("reduce_scatter", [x.numel()], [x.numel()])
        return self._comm.reduce_scatter(x)

    def barrier(self) -> None:
        self._check("barrier", [], [])
        self._comm.barrier()

    def _check(self, op: str, sent: list[int], received: list[int]) -> None:
        if self._expected is None:
            return
        seq, self._seq = self._seq, self._seq + 1
        assert self._expected, f"rank {self.rank} enters {op} {sent}, but collective {seq} is not in the plan"
        wanted = self._expected.popleft()
        if wanted.op == "all_reduce":
            here: tuple[str, Any, Any] = (wanted.op, list(wanted.counts[0]), list(wanted.counts[0]))
        else:
            here = (wanted.op, list(wanted.counts[self.rank]), [row[self.rank] for row in wanted.counts])
        assert (op, sent, received) == here, (
            f"rank {self.rank}, collective {seq}: enters {op}, sends {sent}, receives {received};"
            f" the plan says {here}"
        )


def assert_replicated(x: torch.Tensor, comm: Communicator, what: str) -> None:
    """The bits of `x` are the same on all ranks: router, indexer and sampling choices depend on it."""
    numbers = x.contiguous().view(-1).view(torch.uint8).to(torch.int64)
    weights = torch.arange(len(numbers), device=x.device) % 251 + 1  # so that an order counts too
    digest = (numbers * weights).sum().reshape(1)
    everyone = comm.all_gather(digest).flatten().tolist()
    assert len(set(everyone)) == 1, (
        f"{what} that should be replicated differ between ranks: digests {everyone}"
    )
