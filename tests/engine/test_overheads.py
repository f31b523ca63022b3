"""What steps take beside their operations: found again where it is known, and measured by serving a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from splash.core.config import DEMO, EngineConfig
from splash.engine.deployment import open_deployment
from splash.engine.overheads import CONFIG, COUNTS, Seen, measured_overheads, overheads
from splash.engine.pricing import cost_model
from splash.hw.load import load_profile
from splash.layout.layouts import TP, assigned
from splash.layout.work import DecodeRows, Work
from splash.model.synthetic import write_random

STEP_S, REQUEST_S, LAYER_S, NUM_LAYERS = 0.0007, 0.00003, 0.0002, 5


def test_what_operations_do_not_take_is_found_again() -> None:
    """Red when the time between steps is divided wrongly over step and requests, or that of layers counts it too."""
    deployment = open_deployment(DEMO, EngineConfig(layout="tp"))
    profile = load_profile("cpu")
    cost = cost_model(deployment.checkpoint.spec, deployment.config, profile)
    assert profile.host.request_overhead is not None

    def seen(count: int) -> Seen:
        work = Work((DecodeRows(assigned(TP, 0), count, 64 * count, 64 * count),), sampled=count)
        operations_s = cost.step_s(work) - profile.host.step_overhead.value
        operations_s -= count * profile.host.request_overhead.value
        return Seen(work, operations_s + NUM_LAYERS * LAYER_S, STEP_S + count * REQUEST_S)

    found = overheads({count: [seen(count)] * 3 for count in COUNTS}, cost, num_layers=NUM_LAYERS)
    assert (found.step_s, found.request_s, found.layer_s) == pytest.approx((STEP_S, REQUEST_S, LAYER_S))


def test_a_served_model_shows_them(tmp_path: Path) -> None:
    """Red when no step of each count is left to count, or the random model cannot be served."""
    write_random(tmp_path, {**CONFIG, "num_hidden_layers": 2, "moe_intermediate_size": 64})
    found = measured_overheads(tmp_path, load_profile("cpu"), backend="cpu", ranks=2)
    assert found.step_s > 0
    assert found.layer_s >= 0
