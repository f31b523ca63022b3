"""All 20 ordered pairs: what moves, what does not, and that serving goes on correctly meanwhile."""

from __future__ import annotations

import pytest

from splash.core.events import RequestFlipped, SwitchDone, TargetRefused
from tests.property.harness import PAIRS, Harness, expected_tokens

RANKS = 4
# REFERENCE §3: (weights in units of W, KV in units of K) received per rank on average, f = 1 - 1/T, MLA.
F = 1 - 1 / RANKS
MATRIX = {
    ("tp", "cp"): (F, 0), ("tp", "dcp"): (0, 0), ("tp", "dp"): (F, 0), ("tp", "dop"): (0, 0),
    ("cp", "tp"): (0, F), ("cp", "dcp"): (0, 0), ("cp", "dp"): (0, F / RANKS), ("cp", "dop"): (0, F / RANKS),
    ("dcp", "tp"): (0, F), ("dcp", "cp"): (F, 0), ("dcp", "dp"): (F, F / RANKS), ("dcp", "dop"): (0, F / RANKS),
    ("dp", "tp"): (0, F), ("dp", "cp"): (0, F / RANKS), ("dp", "dcp"): (0, F / RANKS), ("dp", "dop"): (0, 0),
    ("dop", "tp"): (0, F), ("dop", "cp"): (F, F / RANKS), ("dop", "dcp"): (0, F / RANKS), ("dop", "dp"): (F, 0),
}  # fmt: skip


def settled(layout: str, lengths: list[int], **options: object) -> Harness:
    """Requests of `lengths` prompt tokens, all computed, at rest under `layout`."""
    h = Harness(target=layout, kv_pages=400, token_budget=1024, max_chunk=1024, **options)  # type: ignore[arg-type]
    h.scheduler.set_target(layout, "test")
    for length in lengths:
        h.add(length, 200)
    h.step()
    h.settle()
    while any(not r.decoding for r in h.scheduler.running.values()):
        h.step()
    assert {r.present.layout.name for r in h.scheduler.running.values()} == {layout}
    return h


@pytest.mark.parametrize(("old", "new"), PAIRS)
def test_bytes_are_the_matrix_in_the_balanced_case(old: str, new: str) -> None:
    # 4 requests x 16 blocks of 4 tokens, and the few tokens that are decoded until each one is staged.
    h = settled(old, [64] * 4)
    held = 4 * 64 * h.memory.pages.token_bytes
    weights = RANKS * h.memory.geometry.shard_bytes
    before = [row[:] for row in h.executor.received]
    h.scheduler.set_target(new, "test")
    h.settle()
    moved = [
        [a - b for a, b in zip(x, y, strict=True)] for x, y in zip(h.executor.received, before, strict=True)
    ]
    assert all(moved[r][r] == 0 for r in range(RANKS))
    done = [e for e in h.events if isinstance(e, SwitchDone) and e.outcome == "done"][-1]
    want_weights, want_kv = MATRIX[old, new]
    assert done.weight_bytes_received == RANKS * want_weights * weights
    kv = done.bytes_received - done.weight_bytes_received
    per_step = 4 * h.memory.pages.token_bytes * RANKS  # requests decode on while others are staged one by one
    assert kv >= RANKS * want_kv * held
    assert kv <= RANKS * want_kv * (held + done.steps * per_step)
    assert sum(map(sum, moved)) == done.bytes_received
    assert {r.present.layout.name for r in h.scheduler.running.values()} == {new}


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize(("old", "new"), PAIRS)
@pytest.mark.parametrize("when", ["decoding", "mid-prompt", "idle"])
def test_tokens_do_not_change(old: str, new: str, when: str, groups: int) -> None:
    h = Harness(target=old, groups=groups, kv_pages=160, prefer_slots=True)
    lengths = [1, 3, 4, 5, 40, 23]
    if when != "idle":
        for n in lengths:
            h.add(n, 80)
        for _ in range(2 if when == "mid-prompt" else 9):
            h.step()
        if when == "decoding":
            h.settle()
    h.scheduler.set_target(new, "test")
    if when == "idle":
        h.settle()
        for n in lengths:
            h.add(n, 80)
    h.drain()
    for request, n in enumerate(lengths):
        assert h.outputs[request] == expected_tokens(request, n, 80)
    assert not any(isinstance(e, TargetRefused) for e in h.events)
    assert h.scheduler.target == new
    if when == "decoding":
        flips = [e for e in h.events if isinstance(e, RequestFlipped)]
        assert {e.request for e in flips} >= set(range(len(lengths)))


def test_a_flip_moves_nothing() -> None:
    """Where a request flips, every byte had arrived before: the plan of a flip carries no copy for it."""
    h = settled("dp", [61] * 4)
    h.scheduler.set_target("tp", "test")
    h.settle()
    flips = {e.request: e.step for e in h.events if isinstance(e, RequestFlipped) and e.new == "tp"}
    assert len(flips) == 4
    for plan in h.plans:
        for flip in plan.flips:
            tables = h.executor.requests[flip.request].tables.values()
            assert not any(
                getattr(copy, "dst_page", None) in tables for copy in plan.copies if plan.index > flips[0]
            )
