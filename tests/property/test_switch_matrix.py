"""All 20 ordered pairs: what moves, what does not, and that serving goes on correctly meanwhile."""

from __future__ import annotations

import pytest

from splash.core.events import PoolSampled, RequestFlipped, StageStarted, SwitchDone, TargetRefused
from splash.layout.holders import holders
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


def kv_share(old: str, new: str, groups: int) -> float:
    """KV received per rank in units of K, with G groups (REFERENCE §3)."""
    placement = {"tp": "by_head", "dop": "owner", "dp": "owner", "dcp": "striped", "cp": "striped"}
    if placement[old] == placement[new]:
        return 0.0
    if new == "tp":
        return F / groups
    return (1 - 1 / groups) / RANKS if old == "tp" else F / RANKS


@pytest.mark.parametrize(("old", "new"), PAIRS)
def test_the_rest_of_a_half_full_page_is_zeroed(old: str, new: str) -> None:
    """Red when a page that copies do not fill whole is taken for one that they do: what it held before would be read.
    Copies are done here long before shadow writes have filled the last block."""
    h = settled(old, [20, 33], block_size=16, slot_pages=1, copy_bytes_per_step=4096)
    h.scheduler.set_target(new, "test")
    h.settle()
    assert {r.present.layout.name for r in h.scheduler.running.values()} == {new}
    assert all(len(r.tokens) % 16 for r in h.scheduler.running.values()), (
        "the last page is not full at the end"
    )


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize(("old", "new"), PAIRS)
def test_bytes_are_the_set_difference_and_the_matrix(old: str, new: str, groups: int) -> None:
    """Every link carries what its stagings announced; in all, the matrix plus what was decoded until each staging."""
    # 4 requests x 16 blocks of 4 tokens, one owner each
    h = settled(old, [64] * 4, groups=groups)
    token_bytes = h.memory.pages.token_bytes
    held = 4 * 64 * token_bytes * groups
    weights = RANKS * h.memory.geometry.shard_bytes
    before = [row[:] for row in h.executor.received]
    first_event, extra = len(h.events), 0
    h.scheduler.set_target(new, "test")
    for _ in range(500):
        h.step()
        plan = h.plans[-1]
        for request, at in plan.stages:
            if at is not None:  # committed before the first shadowed step: this plan's own row comes after
                extra += h.executor.requests[request].computed - 1 - 64
        if not h.scheduler.switching:
            break
    h.scheduler.drain_events()
    events = h.events[first_event:]
    done = [e for e in events if isinstance(e, SwitchDone)][-1]
    assert done.outcome == "done"
    assert done.weight_bytes_received == RANKS * MATRIX[old, new][0] * weights
    kv = done.bytes_received - done.weight_bytes_received
    share = RANKS * kv_share(old, new, groups)
    assert share * held <= kv <= share * held + extra * token_bytes * groups * RANKS
    staged = [e for e in events if isinstance(e, StageStarted)]
    assert kv == sum(e.num_bytes for e in staged)
    for src in range(RANKS):
        for dst in range(RANKS):
            moved = h.executor.received[src][dst] - before[src][dst]
            shards = h.memory.geometry.shard_bytes if MATRIX[old, new][0] and src != dst else 0
            assert moved == sum(e.bytes_by_link[src][dst] for e in staged) + shards
    assert {r.present.layout.name for r in h.scheduler.running.values()} == {new}
    if groups == 1:
        assert kv_share(old, new, 1) == MATRIX[old, new][1]


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


@pytest.mark.parametrize(("old", "new"), [("dp", "tp"), ("dcp", "dop"), ("dop", "cp"), ("cp", "tp")])
def test_a_flip_moves_nothing(old: str, new: str) -> None:
    """Every byte of a request has arrived before it flips: from that plan on, no copy goes to a page it reads."""
    h = settled(old, [61] * 4)
    h.scheduler.set_target(new, "test")
    flips = 0
    for _ in range(500):
        h.step()
        plan = h.plans[-1]
        for request, at in [(request, flip.at) for flip in plan.flips for request in flip.requests]:
            flips += 1
            tables = h.executor.requests[request].tables
            pages = {
                (rank, page)
                for (rank, group, block), page in tables.items()
                if rank in holders(at, block, group, h.topo)
            }
            assert not any(
                (getattr(c, "dst_rank", -1), getattr(c, "dst_page", -1)) in pages for c in plan.copies
            )
        if not h.scheduler.switching:
            break
    assert flips >= 4


def test_what_flips_leave_is_free_beside_the_first_step_in_the_new_layout() -> None:
    """Red when some of the pages that many requests leave at once wait for a later step: until then they count twice,
    ranks are not emptied of them, and a request that turns back takes them for its own."""
    h = settled("tp", [64] * 8)
    h.scheduler.set_target("dop", "test")
    while not h.plans[-1].flips:
        h.step()
    assert sum(len(flip.requests) for flip in h.plans[-1].flips) == 8
    records = h.scheduler.running.values()
    assert all(len(block.copies) == 1 for record in records for block in record.blocks)
    assert h.scheduler.store.num_retiring == 0


@pytest.mark.parametrize("wait", range(4))
@pytest.mark.parametrize(("old", "new"), [("tp", "dop"), ("dop", "dcp"), ("dcp", "tp")])
def test_back_at_once_is_where_it_was(old: str, new: str, wait: int) -> None:
    """Red when a staging begins before the last flips are settled, also beside their step: pages that are about to
    retire would pass for copies that are there."""
    h = settled(old, [40] * 8, copy_bytes_per_step=1 << 20)
    h.scheduler.set_target(new, "test")
    while h.begin() and not h.plans[-1].flips:
        h.scheduler.prepare()
        h.end()
    for _ in range(wait):
        h.scheduler.prepare()
        h.end()
        h.begin()
    for request in h.scheduler.running:
        h.scheduler.set_goal(request, old, 0)
    h.scheduler.prepare()
    h.end()
    h.settle()
    assert {r.present.layout.name for r in h.scheduler.running.values()} == {old}
    h.drain()
    for request, tokens in h.outputs.items():
        assert tokens == expected_tokens(request, 40, 200)


@pytest.mark.parametrize(("old", "new"), PAIRS)
def test_samples_show_every_page_once(old: str, new: str) -> None:
    """Red when a sample falls between a flip and the settling of its pages: those are counted in two uses or none."""
    h = settled(old, [64] * 8, sample_period_s=0.0)
    h.scheduler.set_target(new, "test")
    for _ in range(60):
        h.step()
    h.scheduler.drain_events()
    samples = [e for e in h.events if isinstance(e, PoolSampled)]
    assert len(samples) >= 60
    for sample in samples:
        for pages in sample.pages:
            assert min(pages.values()) >= 0
            assert sum(pages.values()) == h.memory.geometry.num_pages - 1, "all but the null page"


@pytest.mark.parametrize(("old", "new"), [("tp", "dop"), ("tp", "dp"), ("dop", "dp"), ("dp", "tp")])
def test_a_switch_counts_the_boundaries_of_its_flips(old: str, new: str) -> None:
    """Red when a switch is closed before the result of the step that its last flips were before: how long these took
    comes with that; or when it counts the boundary before the step that it began beside."""
    h = settled(old, [64] * 8)
    first = h.scheduler.next_step  # beside which the target is taken up
    h.executor.boundary_s = lambda plan: 2.0 if plan.step == first else 1.0 if plan.flips else 0.125
    h.scheduler.set_target(new, "test")
    first_event = len(h.events)
    h.settle()
    h.scheduler.drain_events()
    (done,) = [e for e in h.events[first_event:] if isinstance(e, SwitchDone)]
    assert done.max_boundary_s == 1.0
