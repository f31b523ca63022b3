"""What is kept of the inputs of decodes when others decode in the same places."""

from __future__ import annotations

from splash.core.params import SamplingParams
from splash.exec.frame import Frames, RankShape
from splash.exec.mirror import Mirror
from splash.layout.exchange import Widths
from splash.layout.holders import Topology
from splash.layout.layouts import DOP, TP, Assignment, assigned
from splash.sched.step import Admit, Flip, StepPlan

TOPO = Topology(2, 1)
SHAPE = RankShape(0, TOPO, 16, Widths(8, 576, 512, 1, 576, 1024, 576), is_mla=True)


def admit(request: int, at: Assignment) -> Admit:
    return Admit(request, (1, 2, 3), 3, SamplingParams(), 0, at)


def test_others_in_the_same_places_have_their_own_sequences() -> None:
    """Red when a frame that is kept by places brings the requests that it was made for, or is taken for places that it
    was not made for."""
    mirror = Mirror(rank=0, topo=TOPO, block_size=16, zero=lambda pages: None, copy=lambda source, to: None)
    frames, homes = Frames(SHAPE), [assigned(DOP, 0), assigned(DOP, 1)]
    first = StepPlan(0, admits=tuple(map(admit, (0, 1), homes)), decodes=(0, 1))
    mirror.apply(first)
    before = frames.make(first, mirror)
    second = StepPlan(1, gone=(0, 1), admits=tuple(map(admit, (7, 5), homes)), decodes=(7, 5))
    mirror.apply(second)
    after = frames.make(second, mirror)
    assert [s.request for s in before.sequences] == [s.request for s in before.sampled] == [0, 1]
    assert [s.request for s in after.sequences] == [s.request for s in after.sampled] == [7, 5]
    assert after.routes is before.routes
    mirror.apply(StepPlan(2, flips=(Flip((7,), assigned(TP, 0)),)))
    mixed = frames.make(StepPlan(2, decodes=(7, 5)), mirror)
    assert (mixed.routes.own, mixed.routes.to_owner) == ((0,), ((), (1,)))
