"""The CPU port as a `Backend`. Importing and probing it needs no torch: that is for the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from splash.core.errors import NotSupported
from splash.hal.caps import Caps, DeviceInfo
from splash.hal.protocol import Attention, Communicator, Copier, Pool, RankJob
from splash_cpu.probe import num_cores, probe

if TYPE_CHECKING:
    from mpi4py import MPI

COLLECTIVE_TIMEOUT_S = 600.0
"""The first collective waits for the rank that loads last, and ranks may take as long to load."""


class CpuBackend:
    """Rank processes of one machine."""

    @property
    def name(self) -> str:
        return "cpu"

    @property
    def caps(self) -> Caps:
        return Caps(
            block_size=16,
            dtypes=("float32", "bfloat16"),
            mapped_peers=True,
            max_ranks=64,
            divides_replicated=True,
        )

    @property
    def device(self) -> str:
        return "cpu"

    def probe(self) -> list[DeviceInfo]:
        return probe()

    def launch(self, size: int, entry: str, args: Any) -> RankJob:
        from splash_cpu.launch import MpiRankJob

        if not 1 <= size <= self.caps.max_ranks:
            raise NotSupported(f"the cpu port runs 1 to {self.caps.max_ranks} ranks, not {size} (--ranks)")
        probe()  # says what is missing, where a launch would fail somehow
        return MpiRankJob(size, entry, args, threads=max(1, num_cores() // size))

    def pool(self, comm: Communicator, num_bytes: int) -> Pool:
        from splash_cpu.pool import make_pool

        return make_pool(comm, num_bytes)

    def copier(self, comm: Communicator, pool: Pool) -> Copier:
        from splash.hal.copying import InlineCopier

        return InlineCopier(rank=comm.rank, size=comm.size, pool=pool)

    def attention(self) -> Attention:
        from splash_cpu.attention import CpuAttention

        return CpuAttention()

    def synchronize(self) -> None:
        """Calls return when they are done."""


def communicator(world: MPI.Intracomm) -> Communicator:
    """Collective: the fastest communicator that this machine can run."""
    from splash_cpu import mailboxes
    from splash_cpu.communicator import MpiCommunicator

    base = MpiCommunicator(world)
    if not mailboxes.available():
        return base
    spin = base.size <= num_cores()
    return mailboxes.MailboxCommunicator(base, spin=spin, timeout_s=COLLECTIVE_TIMEOUT_S)
