"""The whole engine on in-process ranks: tokens do not depend on layouts, mates, memory or switches."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from splash.core.config import EngineConfig, SchedulerConfig
from splash.core.errors import CapacityError, CheckpointError, ConfigError, RequestError
from splash.core.events import Event, RequestPreempted, SwitchDone
from splash.core.params import SamplingParams
from splash.engine.client import Engine
from splash.engine.deployment import Deployment, open_deployment
from splash.engine.items import When
from splash.engine.report import RunReport
from splash.engine.streams import Completion
from splash.engine.verify import Served, verify
from splash.hal.inproc import InProcessBackend
from tests.conftest import TinyMaker

torch.set_num_threads(1)

PROMPTS = [
    tuple(random.Random(n).randrange(2, 512) for _ in range(length))
    for n, length in enumerate((5, 16, 40, 90))
]
TWELVE = SamplingParams(max_tokens=12, ignore_eos=True)


def _deployment(
    folder: Path, *, layout: str = "tp", ranks: int = 2, kv_pages: int | None = None, **config: int
) -> Deployment:
    settings = {"token_budget": 64, "max_chunk": 32, "max_model_len": 256, "check_invariants": True, **config}
    engine = EngineConfig(
        ranks=ranks,
        layout=layout,
        kv_pages=kv_pages,
        scheduler=SchedulerConfig(**settings),  # type: ignore[arg-type]
    )
    return open_deployment(folder, engine, InProcessBackend())


def _serve(
    deployment: Deployment,
    requests: Sequence[tuple[Sequence[int], SamplingParams]],
    *,
    switches: Sequence[tuple[int, str]] = (),
    events: list[Event] | None = None,
) -> list[Completion]:
    with Engine(deployment, sinks=() if events is None else (events.append,)) as engine:
        streams = [engine.submit(prompt, params) for prompt, params in requests]
        for step, layout in switches:
            engine.switch(layout, when=When(step=step))
        engine.finish()
        return [stream.result() for stream in streams]


def test_switches_do_not_change_tokens(tiny: TinyMaker) -> None:
    """Red when a switch in mid-flight changes a token, or the report loses one."""
    folder = tiny("deepseek_v3")
    requests = [(prompt, TWELVE) for prompt in PROMPTS]
    fixed = _serve(_deployment(folder), requests)
    report = RunReport()
    with Engine(_deployment(folder), sinks=(report.event,)) as engine:
        streams = [engine.submit(prompt, params) for prompt, params in requests]
        for step, layout in ((2, "dp"), (6, "dcp"), (10, "cp"), (14, "dop")):
            engine.switch(layout, when=When(step=step))
        engine.finish()
    for stream, expected in zip(streams, fixed, strict=True):
        done = stream.result()
        report.output(done.request, done.token_ids, done.text, done.finish_reason)
        assert done == expected
    data = report.to_json()
    assert [s["to"] for s in data["switches"]] == ["dp", "dcp", "cp", "dop"]
    assert data["summary"]["output_tokens"] == 48
    assert data["switch_cost"]["flips"] > 0


def test_verify_finds_a_changed_token_and_nothing_else(tiny: TinyMaker) -> None:
    """Red when verification compares nothing, misses a wrong token, blames a right one, or names the wrong ones."""
    deployment = _deployment(tiny("deepseek_v3"), layout="dop")
    done = _serve(deployment, [(prompt, TWELVE) for prompt in PROMPTS])
    served = [
        Served(n, p, TWELVE, tuple(d.token_ids))
        for n, (p, d) in enumerate(zip(PROMPTS, done, strict=True), start=5)
    ]
    right = verify(deployment, served)
    assert (right.found, right.missing, right.num_compared) == ([], 0, 48)

    tokens = list(served[2].tokens)
    tokens[7] = (tokens[7] + 1) % 512
    nothing = replace(served[0], request=4, tokens=())
    wrong = verify(deployment, [nothing, *served[:2], replace(served[2], tokens=tuple(tokens)), served[3]])
    assert (wrong.missing, wrong.num_compared) == (0, 48)
    first = wrong.differences[0]
    assert (first.request, first.position) == (7, 7)
    assert (first.expected, first.found) == (tokens[7], served[2].tokens[7])
    assert first.gap > 2e-4
    assert all(d.request == 7 and d.position >= 7 for d in wrong.found)


def test_preemption_replays(tiny: TinyMaker) -> None:
    """Red when a preempted request repeats, loses or changes a token (CASES 33: 7 pages, 34 and 35 prompt tokens)."""
    folder = tiny("llama")
    prompts = [tuple(range(2, 36)), tuple(range(40, 75))]
    requests = [(prompt, SamplingParams(max_tokens=30, ignore_eos=True)) for prompt in prompts]
    ample = _serve(_deployment(folder), requests)
    events: list[Event] = []
    tight = _serve(
        _deployment(folder, ranks=1, kv_pages=7, max_model_len=80, watermark_pages=0), requests, events=events
    )
    assert any(isinstance(e, RequestPreempted) for e in events)
    assert tight == ample


def test_a_seed_decides_alone(tiny: TinyMaker) -> None:
    """Red when batch mates, preemption, a switch or another layout change a seeded request (CASES 44)."""
    folder = tiny("deepseek_v3")
    seeded = (PROMPTS[2], SamplingParams(max_tokens=20, temperature=1.0, top_p=0.95, seed=7, ignore_eos=True))
    unseeded = (PROMPTS[0], SamplingParams(max_tokens=20, temperature=1.0, ignore_eos=True))
    other = (PROMPTS[2], SamplingParams(max_tokens=20, temperature=1.0, top_p=0.95, seed=8, ignore_eos=True))
    alone = _serve(_deployment(folder), [seeded])[0].token_ids
    assert _serve(_deployment(folder), [unseeded, seeded, other])[1].token_ids == alone
    assert _serve(_deployment(folder, layout="dcp"), [other, other, seeded])[2].token_ids == alone
    switched = _serve(_deployment(folder), [seeded, unseeded], switches=[(5, "dop"), (12, "cp")])
    assert switched[0].token_ids == alone
    assert _serve(_deployment(folder), [other])[0].token_ids != alone


@pytest.mark.parametrize("chunk", [15, 16, 17, 255, 300])
@pytest.mark.parametrize("budget", [16, 300])
def test_chunks_and_budgets_around_equality(tiny: TinyMaker, chunk: int, budget: int) -> None:
    """Red when an order of chunk, budget, limit and prompt hangs or changes tokens (CASES 36)."""
    folder = tiny("llama")
    params = SamplingParams(max_tokens=3, ignore_eos=True)
    prompts = [tuple(2 + i % 500 for i in range(length)) for length in (1, 16, 17, 252)]
    expected = _serve(_deployment(folder), [(prompt, params) for prompt in prompts])
    found = _serve(
        _deployment(folder, max_chunk=chunk, token_budget=budget), [(prompt, params) for prompt in prompts]
    )
    assert found == expected


def test_lengths_around_the_limit(tiny: TinyMaker) -> None:
    """Red when limit-1 is refused, limit is accepted, or the message lacks a number (CASES 39)."""
    deployment = _deployment(tiny("llama"), max_model_len=64)
    check = deployment.checker()
    (done,) = _serve(deployment, [((3,) * 63, SamplingParams(max_tokens=5, ignore_eos=True))])
    assert (len(done.token_ids), done.finish_reason) == (1, "length")
    for length in (64, 65):
        with pytest.raises(RequestError, match=rf"{length} tokens.* 64: at most 63"):
            check((3,) * length, SamplingParams(max_tokens=1))


def test_an_engine_is_opened_or_refused(tiny: TinyMaker, tmp_path: Path) -> None:
    """Red when a deployment that cannot work is found out only when ranks run."""
    folder = tiny("llama")
    with pytest.raises(CheckpointError, match="does not exist"):
        _deployment(tmp_path / "missing")
    with pytest.raises(ConfigError, match=r"cannot be divided over 3 ranks; choose --ranks from 1, 2, 4, 8"):
        _deployment(folder, ranks=3)
    with pytest.raises(ConfigError, match="unknown layout 'pd'"):
        _deployment(folder, layout="pd")
    with pytest.raises(CapacityError, match="raise --kv-pages or --pool-mib"):
        open_deployment(tiny("deepseek_v3", layers=6), EngineConfig(pool_mib=1), InProcessBackend())
    with pytest.raises(ConfigError, match="not in float16"):
        open_deployment(folder, EngineConfig(dtype="float16"), InProcessBackend())


def test_limits_are_cut_to_the_model(tiny: TinyMaker) -> None:
    """Red when a request may grow past the positions that the model knows."""
    deployment = _deployment(tiny("llama"), max_model_len=10**6, max_chunk=512, token_budget=64)
    assert deployment.max_model_len == 4096
    assert deployment.config.scheduler.max_chunk == 64


def test_auto_visits_layouts_and_keeps_tokens(tiny: TinyMaker) -> None:
    """Red when the policy's switches change a token."""
    folder = tiny("deepseek_v3")
    requests = [
        (PROMPTS[n % 4][: 5 + n], SamplingParams(max_tokens=30 + 8 * n, ignore_eos=True)) for n in range(9)
    ]
    events: list[Event] = []
    auto = _serve(_deployment(folder, layout="auto", max_running=16), requests, events=events)
    assert any(isinstance(e, SwitchDone) for e in events)
    assert auto == _serve(_deployment(folder), requests)
