"""What a change of the target costs: bytes, seconds until they have come, and what they take from steps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from splash.hw import ops
from splash.hw.cost import CostModel
from splash.hw.load import load_profile
from splash.hw.precision import Precision
from splash.hw.profile import ProfileError
from splash.layout.change import Change
from splash.layout.layouts import Placement
from splash.spec.known import known_model
from splash.spec.storage import kv_storage, weight_storage

P = load_profile("h200")


def change_of(ranks: int, tokens: int = 1000) -> Change:
    """Owned tokens go to stripes, and replicas are fetched."""
    moved = {(Placement.OWNER, Placement.STRIPED): tokens}
    return Change(ranks, 1, 64_000, moved, shards=ranks - 1, shard_bytes=1 << 20)


def over(ranks: int, *, overlapped_copies: bool = True) -> CostModel:
    spec = known_model("deepseek-v3")
    return CostModel(
        spec=spec,
        profile=P,
        ranks=ranks,
        precision=Precision.of(spec, weight_storage("bfloat16"), kv_storage("bfloat16")),
        max_rows=16,
        overlapped_copies=overlapped_copies,
    )


def test_a_change_costs_what_its_bytes_take_to_come_and_take_from_steps() -> None:
    """Red when copies that hold up the step are priced as copies beside it, or bytes that are read are not counted."""
    moved = change_of(8)
    assert moved.num_bytes == 7 / 64 * 64_000 * 1000 + 7 * (1 << 20)
    beside, between = over(8).change(moved), over(8, overlapped_copies=False).change(moved)
    assert beside.num_bytes == between.num_bytes == moved.num_bytes
    assert (
        beside.copying_s
        == between.copying_s
        == pytest.approx(moved.num_bytes / P.memory.copy_bandwidth.value)
    )
    assert beside.held_up_s == pytest.approx(2 * moved.num_bytes / P.memory.bandwidth.value)
    assert between.held_up_s == pytest.approx(2 * between.copying_s)


def test_what_comes_from_other_nodes_comes_over_the_network() -> None:
    """Red when copies between nodes are as fast as those within one: 8 of 15 other ranks are in the other node."""
    assert P.node.ranks.value == 8
    assert P.node.network_bandwidth is not None
    moved, inside, network = change_of(16), P.memory.copy_bandwidth.value, P.node.network_bandwidth.value
    expected = moved.num_bytes * (7 / 15 / inside + 8 / 15 / min(inside, network))
    assert network < inside
    assert over(16).change(moved).copying_s == pytest.approx(expected)
    assert over(16).copy_bandwidth == pytest.approx(moved.num_bytes / expected)
    assert over(8).copy_bandwidth == pytest.approx(inside)
    assert [over(16).apart(0, other) for other in (1, 7, 8, 15)] == [False, False, True, True]
    alone = replace(P, node=replace(P.node, network_bandwidth=None))
    with pytest.raises(ProfileError, match=r"h200: .* has no \[node\] network_bandwidth"):
        ops.copy_s(alone, 1.0, between_nodes=True)
