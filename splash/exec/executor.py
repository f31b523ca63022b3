"""The engine's side of the ranks: plans go to all of them, their results become one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path

from splash.core.config import EngineConfig
from splash.core.env import debug
from splash.exec.start import LayerLoaded, Ready, WorkerArgs
from splash.hal.protocol import Backend, RankJob
from splash.kv.slots import MemoryPlan
from splash.sched.step import StepPlan, StepResult
from splash.spec.model import ModelSpec

START_TIMEOUT_S = 600.0
"""Loading a layer from a slow disk is the longest that ranks are waited for."""

ENTRY = "splash.exec.rank:main"


class RankExecutor:
    """The `Executor` over a job of ranks. `ready` says what each rank loaded."""

    def __init__(self, job: RankJob, ready: Sequence[Ready] = (), *, check: bool = False) -> None:
        self.ready = tuple(ready)
        self._job = job
        self._check = check

    def submit(self, plan: StepPlan) -> None:
        self._job.send(plan.values)

    def collect(self) -> StepResult:
        return merged([StepResult(*values) for values in self._job.receive()], check=self._check)

    def close(self) -> None:
        self._job.close()


def merged(results: Sequence[StepResult], *, check: bool) -> StepResult:
    """Tokens are the same on all ranks; each acknowledges its own copies; the slowest rank ends the step, and copied
    longest."""
    first = results[0]
    if check:
        for rank, other in enumerate(results):
            assert (other.step, other.tokens) == (first.step, first.tokens), (
                f"rank {rank} sampled {other.tokens} in step {other.step}, rank 0 {first.tokens} in {first.step}"
            )
    return StepResult(
        first.step,
        first.tokens,
        tuple(chain.from_iterable([result.acks for result in results])),
        first.gaps,
        min([result.started_s for result in results]),
        max([result.ended_s for result in results]),
        max([result.copied_s for result in results]),
    )


def start(
    *,
    backend: Backend,
    folder: Path | str,
    spec: ModelSpec,
    memory: MemoryPlan,
    config: EngineConfig,
    gaps: bool = False,
    loaded: Callable[[int], None] = lambda layers: None,
) -> RankExecutor:
    """Launch the ranks and wait until all have loaded and are warm. What a rank raises is raised here.

    `loaded` is told how many layers all ranks have, each time there is one more.
    """
    args = WorkerArgs(
        folder=str(folder),
        spec=spec,
        memory=memory,
        dtype=config.dtype or backend.caps.dtypes[0],
        max_positions=config.scheduler.max_model_len + 1,
        gaps=gaps,
        check=debug(),
    )
    job = backend.launch(config.ranks, ENTRY, args)
    try:
        ready = _when_ready(job, loaded)
    except BaseException:
        job.close()
        raise
    return RankExecutor(job, ready, check=debug())


def _when_ready(job: RankJob, loaded: Callable[[int], None]) -> list[Ready]:
    """What the ranks say once all are ready; they load layer by layer, in step."""
    num_layers = 0
    while isinstance((messages := job.receive(START_TIMEOUT_S))[0], LayerLoaded):
        num_layers += 1
        loaded(num_layers)
    return messages
