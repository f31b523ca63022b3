"""What the ranks of the job tests run."""

import ctypes
import os
import signal
import sys
import time
from dataclasses import replace

import torch

from splash.core.errors import CheckpointError
from splash.hal.conformance import suite
from splash.hal.protocol import RankContext


def serve(context: RankContext, args: object) -> None:
    """Answers each message with (rank, pid, parent's pid, what it was told); some it obeys."""
    while True:
        message = context.receive()
        if isinstance(message, tuple) and message[1] in (context.rank, None):
            obey(context, message[0])
        context.send((context.rank, os.getpid(), os.getppid(), message, args))


def obey(context: RankContext, order: str) -> None:
    if order == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif order == "segfault":
        ctypes.string_at(0)
    elif order == "exit":
        print("giving up", file=sys.stderr, flush=True)
        os._exit(3)
    elif order == "wait":
        time.sleep(0.2)
    elif order == "raise":
        raise ValueError("something is wrong")
    elif order == "checkpoint":
        raise CheckpointError("no such folder: /x")
    elif order == "reduce":
        context.comm.all_reduce(torch.ones(5))
    elif order == "differ":
        context.comm.all_reduce(torch.ones(5)) if context.rank == 0 else context.comm.all_gather(
            torch.ones(5)
        )
    elif order == "sleep":
        time.sleep(600)
    elif order == "loop":
        while True:
            pass
    elif order == "noise":
        for i in range(20_000):
            print(f"line {i}: some words to fill a pipe", file=sys.stderr)


def ends_at_once(context: RankContext, args: object) -> None:
    """Returns although nobody closed the job."""


def serve_checks_over_mpi(context: RankContext, args: object) -> None:
    """The conformance suite's rank, whose communicator is the one that stands in where mailboxes cannot run."""
    from mpi4py import MPI
    from splash_cpu.communicator import MpiCommunicator

    suite.serve(replace(context, comm=MpiCommunicator(MPI.COMM_WORLD)), args)
