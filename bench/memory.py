"""What ranks hold in memory: python -m bench.memory [DIR] [--json FILE]

Serves some requests through all layouts on the ranks of the MPI port, with the demo checkpoint and, if given, that of
`python -m bench.checkpoint`, and adds up the ranks' proportional set sizes (what a rank maps alone, and its part of
what it shares). The bound is their weights and pools (each with the rank's own shard in its slot) + 400 MB a rank.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import psutil

from bench.load import random_prompts
from bench.machine import provenance
from splash.cli.options import DEMO
from splash.core.config import EngineConfig
from splash.core.params import SamplingParams
from splash.engine.client import Engine
from splash.engine.deployment import open_deployment
from splash.engine.items import When
from splash.exec.executor import RankExecutor
from splash.layout.layouts import LAYOUTS

EXTRA_BYTES = 400_000_000
"""A rank may take beside its weights and its pool: interpreter, libraries, workspace."""
NUM_REQUESTS, NUM_PROMPT, NUM_OUTPUT = 8, 200, 80
STEPS_PER_LAYOUT = 15


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes, summed over ranks; `pss` as the kernel counts after the last step."""

    model: str
    ranks: int
    weights: int
    pools: int
    shards: int
    """A part of `pools`."""
    pss: int

    @property
    def bound(self) -> int:
        return self.weights + self.pools + self.ranks * EXTRA_BYTES

    @property
    def fits(self) -> bool:
        return self.pss <= self.bound


def rank_pids() -> list[int]:
    """The rank processes below this one."""
    return [
        process.pid
        for process in psutil.Process().children(recursive=True)
        if "splash_cpu.rank" in process.cmdline() and "mpiexec" not in process.name()
    ]


def pss_bytes(pid: int) -> int:
    """The proportional set size of a process."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"/proc/{pid}/smaps_rollup has no Pss; the kernel must be 4.14 or later")


def measure(folder: Path, *, ranks: int = 2) -> Held:
    """Serves, then looks while the ranks still live."""
    deployment = open_deployment(folder, EngineConfig(ranks=ranks, layout="tp"))
    executor = deployment.launch()
    assert isinstance(executor, RankExecutor)
    prompts = random_prompts(NUM_REQUESTS, NUM_PROMPT, vocab_size=deployment.vocab_size, seed=0)
    with Engine(deployment, executor=executor) as engine:
        for place, layout in enumerate(LAYOUTS):
            engine.switch(layout, when=When(step=place * STEPS_PER_LAYOUT))
        for _ in engine.generate(prompts, SamplingParams(max_tokens=NUM_OUTPUT, ignore_eos=True)):
            pass
        pids = rank_pids()
        assert len(pids) == ranks, f"{len(pids)} processes look like {ranks} ranks"
        pss = sum(map(pss_bytes, pids))
    return Held(
        deployment.model,
        ranks,
        weights=sum(ready.weight_bytes for ready in executor.ready),
        pools=sum(ready.pool_bytes for ready in executor.ready),
        shards=sum(ready.shard_bytes for ready in executor.ready),
        pss=pss,
    )


def show(rows: list[Held]) -> None:
    """A table in MB (10^6 bytes)."""
    print(f"{'model':20} ranks  weights    pools (shards)   measured      bound")
    for held in rows:
        verdict = "" if held.fits else "  ABOVE THE BOUND"
        mb = {name: getattr(held, name) / 1e6 for name in ("weights", "pools", "shards", "pss", "bound")}
        print(
            f"{held.model:20} {held.ranks:5} {mb['weights']:8.1f} {mb['pools']:8.1f} ({mb['shards']:6.1f})"
            f" {mb['pss']:10.1f} {mb['bound']:10.1f}{verdict}"
        )


@click.command()
@click.argument("folder", required=False, type=click.Path(path_type=Path))
@click.option("--json", "json_file", type=click.Path(path_type=Path))
@click.option("--ranks", default=2, show_default=True)
def main(folder: Path | None, json_file: Path | None, ranks: int) -> None:
    """FOLDER is a checkpoint of `python -m bench.checkpoint`."""
    rows = [measure(each, ranks=ranks) for each in (DEMO, folder) if each is not None]
    show(rows)
    if json_file is not None:
        found = [{**asdict(held), "bound": held.bound, "fits": held.fits} for held in rows]
        json_file.write_text(json.dumps({**provenance(), "memory": found}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
