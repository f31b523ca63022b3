"""All 20 switches over rank processes: what threads cannot show is pages that peers read in each other's memory."""

from __future__ import annotations

import random
from itertools import pairwise
from statistics import median

import pytest

from splash.core.config import EngineConfig, SchedulerConfig
from splash.core.events import RequestFlipped, SwitchDone
from splash.engine.deployment import open_deployment
from tests.conftest import TinyMaker
from tests.engine.served import Driven
from tests.engine.switching_kit import tour
from tests.property.harness import PAIRS
from tests.tiny import clear_reference

pytestmark = pytest.mark.ranks

NUM_TOKENS = 96
DECODED = 4
"""Tokens that every request in decode has at least before its layout changes."""
SHARE = 3e-4
"""Of a step's time for copies: a page or two a step, so that stagings last for several."""


def test_a_tour_of_all_switches_over_four_processes(tiny: TinyMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when a copy between processes reads a page too early, or a rank enters another collective than its peers.

    One job: on each leg of a tour of all 20 pairs requests of one page and of several change their layout, one of
    them in the middle of its prompt. Debug mode: pages, collectives and tokens of all ranks are checked.
    """
    monkeypatch.setenv("SPLASH_DEBUG", "1")
    folder = tiny("deepseek_v3")
    layouts = tour("tp", random.Random(1))
    deployment = open_deployment(
        folder,
        EngineConfig(
            ranks=4,
            layout=layouts[0],
            kv_pages=120,
            scheduler=SchedulerConfig(token_budget=24, max_chunk=16, copy_share=SHARE),
        ),
    )
    page = deployment.memory.pages.block_size
    refs = [clear_reference(folder, n, NUM_TOKENS, seed=n) for n in (page - 1, 2 * page + 1)]
    late = clear_reference(folder, 3 * page, 4, seed=3)
    with Driven(deployment) as served:
        for old, new in pairwise(layouts):
            requests = {served.add(ref.prompt, NUM_TOKENS): ref for ref in refs}
            while any(len(served.outputs[request]) < DECODED for request in requests):
                served.step()
            decoding = set(requests)
            requests[served.add(late.prompt, 4)] = late
            served.steps(2)
            served.scheduler.set_target(new, f"{old} to {new}")
            served.drain()
            for request, ref in requests.items():
                assert tuple(served.outputs[request]) == ref.token_ids, (old, new, len(ref.prompt))
            done = [event for event in served.events if isinstance(event, SwitchDone)]
            assert (done[-1].old, done[-1].new, done[-1].outcome) == (old, new, "done")
            arrived = {e.request for e in served.events if isinstance(e, RequestFlipped) and e.new == new}
            assert decoding <= arrived, (old, new)
        staged = [event.staged_steps for event in served.events if isinstance(event, RequestFlipped)]
    assert {(a, b) for a, b in pairwise(layouts)} == set(PAIRS)
    assert median(filter(None, staged)) > 2, "stagings are over before a step runs beside their copies"
