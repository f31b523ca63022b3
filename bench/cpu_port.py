"""The CPU port's parts on two ranks: python -m bench.cpu_port [start|messages|collectives|copies|attention]...

`collectives` sets the mailboxes against MPICH, `copies` copying between steps against a thread, `attention` batched
rows against one sequence at a time. Times are the least and the median of many repetitions, interleaved, so
that what else runs on the machine meets all alike.
"""

from __future__ import annotations

import random
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from queue import SimpleQueue
from typing import Any

import click

from bench.machine import idleness, warn_if_busy
from splash.hal.protocol import ByteCopy, RankContext

SIZES = (4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20)
IN_A_ROW = 20
"""Collectives per measured time, so that waiting for the other rank counts once."""
COPY_BYTES = (1 << 19, 1 << 21, 1 << 23)
PARTS = ("start", "messages", "collectives", "copies", "attention")


def timed(forms: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each form, one after the other, `repeats` times."""
    found: dict[str, list[float]] = {name: [] for name in forms}
    for form in forms.values():
        form()
    for _ in range(repeats):
        for name, form in forms.items():
            started = time.perf_counter()
            form()
            found[name].append(time.perf_counter() - started)
    return found


def line(name: str, seconds: list[float]) -> str:
    return f"{name} {min(seconds) * 1e6:9.1f} (median {statistics.median(seconds) * 1e6:9.1f}) µs"


def echo(context: RankContext, args: Any) -> None:
    import torch  # noqa: F401 - as the engine's ranks do

    while True:
        context.send(context.receive())


def start(ranks: int) -> Iterator[str]:
    """Seconds from launch to the first answer, with torch imported, and of closing."""
    from splash_cpu import SPEC

    for _ in range(3):
        begun = time.perf_counter()
        job = SPEC.loader().launch(ranks, "bench.cpu_port:echo", None)
        job.send(None)
        job.receive()
        ready = time.perf_counter()
        job.close()
        yield f"start {ready - begun:.2f} s, close {time.perf_counter() - ready:.3f} s"


def messages(ranks: int) -> Iterator[str]:
    """From `send` in the engine over the ranks' answers to the end of `receive`."""
    from splash_cpu import SPEC

    job = SPEC.loader().launch(ranks, "bench.cpu_port:echo", None)

    def round_trip(message: object) -> None:
        job.send(message)
        job.receive()

    for size in (0, 1000, 100_000):
        message = b"x" * size
        yield line(f"message of {size:6} bytes", timed({"x": lambda m=message: round_trip(m)}, 1000)["x"])
    job.close()


def run_on_ranks(ranks: int, entry: str) -> Iterator[str]:
    """The lines that rank 0 of `entry` answers."""
    from splash_cpu import SPEC

    job = SPEC.loader().launch(ranks, entry, None)
    yield from job.receive()[0]
    job.close()


def collective_ranks(context: RankContext, args: Any) -> None:
    import torch
    from mpi4py import MPI
    from splash_cpu.communicator import MpiCommunicator

    comms = {"mailboxes": context.comm, "MPI": MpiCommunicator(MPI.COMM_WORLD)}
    lines = []
    for size in SIZES:
        x = torch.ones(size // 4)
        each = [x.numel() // context.size] * context.size
        for op, call in (
            ("all_reduce", lambda comm, x=x: comm.all_reduce(x)),
            ("all_to_all_v", lambda comm, x=x, each=each: comm.all_to_all_v(x[: sum(each)], each, each)),
        ):

            def many(comm, call=call) -> None:
                for _ in range(IN_A_ROW):
                    call(comm)

            found = timed({name: lambda c=comm, many=many: many(c) for name, comm in comms.items()}, 60)
            x.fill_(1)
            for name, times in found.items():
                lines.append(line(f"{op:12} {size >> 10:5} KiB {name:9}", [t / IN_A_ROW for t in times]))
    context.send(lines)
    context.receive()


def copy_ranks(context: RankContext, args: Any) -> None:
    """A step of products and sums, alone, with copies before it, and with copies in a thread."""
    import torch

    pool = context.backend.pool(context.comm, 64 << 20)
    pool.bytes.fill_(1)
    copier = context.backend.copier(context.comm, pool)
    weights = [torch.randn(1024, 1024) for _ in range(16)]
    rows = torch.randn(16, 1024)
    orders: SimpleQueue[list[ByteCopy] | None] = SimpleQueue()
    copied = threading.Event()

    def work() -> None:
        while (order := orders.get()) is not None:
            copier.submit(order)
            copied.set()

    def copies(size: int) -> list[ByteCopy]:
        source = (1 - context.rank) % context.size
        runs = tuple((random.randrange(16 << 20), (32 << 20) + i * size // 8, size // 8) for i in range(8))
        return [ByteCopy(0, source, context.rank, runs)]

    def step() -> None:
        for weight in weights:
            context.comm.all_reduce(torch.nn.functional.linear(rows, weight))

    def inline(size: int) -> None:
        copier.submit(copies(size))
        step()

    def threaded(size: int) -> None:
        copied.clear()
        orders.put(copies(size))
        step()
        copied.wait()

    thread = threading.Thread(target=work)
    thread.start()
    forms: dict[str, Callable[[], object]] = {"step alone": step}
    for size in COPY_BYTES:
        forms[f"{size >> 10:5} KiB inline"] = lambda size=size: inline(size)
        forms[f"{size >> 10:5} KiB thread"] = lambda size=size: threaded(size)
    lines = [line(name, times) for name, times in timed(forms, 60).items()]
    orders.put(None)
    thread.join()
    context.send(lines)
    context.receive()


def attention_ranks(context: RankContext, args: Any) -> None:
    """One layer on one thread, fp32; several batches in turn, so that no cache holds them. Rank 0 alone."""
    if context.rank:
        context.send([])
        context.receive()
    from splash.hal.conformance.cases import Heads, Rows, make_batch

    attention, size = context.backend.attention(), context.backend.caps.block_size
    kinds = {
        "MLA 16 heads": Heads(16, 1, 576, 512, mla=True),
        "MLA 8 heads": Heads(8, 1, 576, 512, mla=True),
        "GQA 8 heads of 2": Heads(8, 2, 128, 128),
    }
    work = {f"{n:3} decodes at {at:4}": [Rows(at - 1)] * n for at in (128, 2048) for n in (1, 16, 64)}
    work |= {f"512 rows at {at:4}": [Rows(at, 512)] for at in (0, 1536)}
    lines = []
    for kind, heads in kinds.items():
        for name, rows in work.items():
            batches = [make_batch(heads, rows, block_size=size, seed=seed) for seed in range(3)]
            together = [attention.prepare(b.seqs, size) for b in batches]
            apart = [[attention.prepare([seq], size) for seq in b.seqs] for b in batches]
            turn = iter(range(1 << 30))

            def batched(batches=batches, prepared=together, turn=turn) -> None:
                i = next(turn) % len(batches)
                attention.attend(batches[i].q, batches[i].kv, prepared[i], batches[i].scale)

            def single(batches=batches, prepared=apart, turn=turn) -> None:
                i = next(turn) % len(batches)
                for one in prepared[i]:
                    attention.attend(batches[i].q, batches[i].kv, one, batches[i].scale)

            forms: dict[str, Callable[[], object]] = {"batched": batched}
            if len(rows) > 1:
                forms["one by one"] = single
            found = timed(forms, 60 if len(rows) * rows[0].start < 4000 and rows[0].count == 1 else 8)
            lines += [line(f"{kind:17} {name:20} {form:10}", times) for form, times in found.items()]
    context.send(lines)
    context.receive()


@click.command()
@click.argument("parts", nargs=-1, type=click.Choice(PARTS))
@click.option("--ranks", default=2, show_default=True)
def main(parts: tuple[str, ...], ranks: int) -> None:
    """All PARTS, if none is named."""
    warn_if_busy(idleness())
    runs: dict[str, Callable[[], Iterator[str]]] = {
        "start": lambda: start(ranks),
        "messages": lambda: messages(ranks),
        "collectives": lambda: run_on_ranks(ranks, "bench.cpu_port:collective_ranks"),
        "copies": lambda: run_on_ranks(ranks, "bench.cpu_port:copy_ranks"),
        "attention": lambda: run_on_ranks(ranks, "bench.cpu_port:attention_ranks"),
    }
    for part in parts or PARTS:
        for text in runs[part]():
            print(f"{part}: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
