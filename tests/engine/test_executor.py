"""From a launched job to one result: threads as ranks, the same entry as rank processes have."""

from __future__ import annotations

from pathlib import Path

import pytest
from splash_cpu.attention import CpuAttention

from splash.core.config import EngineConfig, SchedulerConfig
from splash.core.errors import CheckpointError
from splash.exec.executor import RankExecutor, merged, start
from splash.hal.inproc import InProcessBackend
from splash.sched.step import StepResult
from tests.conftest import TinyMaker
from tests.engine.pipeline_kit import spec_of
from tests.engine.script import Script, at
from tests.tiny import clear_reference


def started(folder: Path, script: Script, ranks: int) -> RankExecutor:
    return start(
        backend=InProcessBackend(attention=CpuAttention()),
        folder=folder,
        spec=script.spec,
        memory=script.memory,
        config=EngineConfig(ranks=ranks, scheduler=SchedulerConfig(max_model_len=128)),
    )


def submit(executor: RankExecutor, script: Script) -> StepResult:
    script.step()
    executor.submit(script.steps[-1].plan)
    return executor.collect()


def test_a_job_serves_plans(tiny: TinyMaker) -> None:
    """Red when the entry does not load, warm up, answer, copy after its answer and acknowledge with the next."""
    folder = tiny("deepseek_v3")
    script = Script(spec_of(folder), 2, block_size=16)
    reference = clear_reference(folder, 20, 6)
    executor = started(folder, script, 2)
    try:
        assert [r.rank for r in executor.ready] == [0, 1]
        assert all(r.shard_bytes > 0 and r.weight_bytes > 0 and r.load_s > 0 for r in executor.ready)
        script.admit(0, reference.prompt, at("tp"))
        script.chunk(0, 32)
        first = submit(executor, script)
        assert first.ended_s >= first.started_s > 0
        script.stage(0, at("dop", 1))
        script.decode(0)
        second = submit(executor, script)
        script.stage(0, at("dcp", 1))
        script.decode(0)
        third = submit(executor, script)
        assert not second.acks
        script.decode(0)
        fourth = submit(executor, script)
        planned = [c.id for step in script.steps[:3] for c in step.plan.copies]
        assert sorted((*third.acks, *fourth.acks)) == sorted(planned)
        script.flip(0)
        script.decode(0)
        fifth = submit(executor, script)
        tick = submit(executor, script)
        assert (tick.tokens, tick.started_s, tick.ended_s) == ((), 0.0, 0.0)
        tokens = [r.tokens[0] for r in (first, second, third, fourth, fifth)]
        assert tokens == list(reference.token_ids[:5])
    finally:
        executor.close()


def test_what_a_rank_raises_is_raised_at_start(tiny: TinyMaker, tmp_path: Path) -> None:
    """Red when a bad checkpoint shows as a time-out or a traceback."""
    script = Script(spec_of(tiny("llama")), 2)
    with pytest.raises(CheckpointError, match=str(tmp_path)):
        started(tmp_path, script, 2)


def test_results_of_ranks_become_one() -> None:
    results = [
        StepResult(3, (5, 6), (1,), (0.5, 0.25), 10.0, 11.0, 0.003),
        StepResult(3, (5, 6), (2, 4), (0.5, 0.25), 9.5, 10.5, 0.002),
    ]
    assert merged(results, check=True) == StepResult(3, (5, 6), (1, 2, 4), (0.5, 0.25), 9.5, 11.0, 0.003)


def test_ranks_that_disagree_are_noticed_in_debug_mode() -> None:
    results = [StepResult(3, (5, 6)), StepResult(3, (5, 7))]
    with pytest.raises(AssertionError, match="rank 1 sampled"):
        merged(results, check=True)
