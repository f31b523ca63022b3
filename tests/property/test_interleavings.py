"""Any interleaving of arrivals, steps, target changes, own goals, rebalancing and aborts loses nothing.

Checked after every step: pages partition the pools (Scheduler.check), and every token that a row reads is where
the plan says (the mirror). Checked at the end: exact tokens, no page, pin or copy left, every transition ended.
"""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from splash.core.errors import CapacityError, RequestError
from splash.kv.pool import PageState
from splash.layout.layouts import LAYOUTS, Projection
from splash.layout.residency import full_ranks
from splash.sched.policy import ThresholdPolicy, Thresholds
from tests.property.harness import Harness, expected_tokens

layouts = st.sampled_from(sorted(LAYOUTS))


class Interleavings(RuleBasedStateMachine):
    @initialize(
        ranks=st.sampled_from([1, 2, 4]),
        kv_pages=st.sampled_from([14, 24, 80]),
        groups=st.sampled_from([1, 2, 4]),
        first=layouts,
        prefer_slots=st.booleans(),
        delay=st.integers(0, 3),
        replicas=st.sampled_from(["keep", "drop"]),
        slack=st.sampled_from([4, 64]),
        auto=st.booleans(),
        state_pages=st.sampled_from([0, 0, 1, 3]),
        copy_bytes=st.sampled_from([64, 64, 512, 1 << 20]),
        copy_rate=st.sampled_from([None, 1e3, 1e6, 1e12]),
        ahead=st.integers(0, 2),
    )
    def start(
        self,
        ranks: int,
        kv_pages: int,
        groups: int,
        first: str,
        prefer_slots: bool,
        delay: int,
        replicas: str,
        slack: int,
        auto: bool,
        state_pages: int,
        copy_bytes: int,
        copy_rate: float | None,
        ahead: int,
    ) -> None:
        """`copy_rate`: what is learnt of copies, beside steps of 40 ms: budgets from a page to all there is."""
        policy = ThresholdPolicy(Thresholds(3, 12, 24, 5, 1)) if auto else None
        self.h = Harness(
            ranks=ranks,
            groups=min(groups, ranks),
            kv_pages=kv_pages,
            target=first,
            policy=policy,
            prefer_slots=prefer_slots,
            delay=delay,
            replicas=replicas,
            transition_slack_steps=slack,
            watermark_pages=1,
            copy_bytes_per_step=copy_bytes,
            state_pages=state_pages,
            ahead=ahead,
        )
        if copy_rate is not None:
            self.h.executor.step_s, self.h.executor.copy_rate = 0.04, copy_rate
        self.drops = replicas == "drop"
        self.sizes: dict[int, tuple[int, int]] = {}
        self.aborted: set[int] = set()

    @rule(num_prompt=st.integers(1, 40), max_tokens=st.integers(1, 40))
    def arrive(self, num_prompt: int, max_tokens: int) -> None:
        try:
            request = self.h.add(num_prompt, max_tokens)
        except RequestError:
            return
        self.sizes[request] = num_prompt, max_tokens

    @rule(count=st.integers(1, 12))
    def steps(self, count: int) -> None:
        for _ in range(count):
            self.h.step()

    @rule(name=layouts)
    def retarget(self, name: str) -> None:
        self.h.scheduler.set_target(name, "test")

    @precondition(lambda self: self.h.scheduler.running)
    @rule(data=st.data(), layout=layouts)
    def own_goal(self, data: st.DataObject, layout: str) -> None:
        request = data.draw(st.sampled_from(sorted(self.h.scheduler.running)))
        with suppress(CapacityError):
            self.h.scheduler.set_goal(request, layout, data.draw(st.integers(0, self.h.topo.ranks - 1)))

    @rule()
    def rebalance(self) -> None:
        self.h.scheduler.rebalance()

    @precondition(lambda self: self.sizes)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(sorted(self.sizes)))
        if request not in self.h.reasons:
            self.h.abort(request)
            self.aborted.add(request)

    @invariant()
    def nothing_is_kept_for_nobody(self) -> None:
        """At rest, a rank is full only for the target, or for a request's place or goal."""
        scheduler = self.h.scheduler
        sharded = scheduler.transitions.target.layout.projection is Projection.SHARDED
        if not self.drops or scheduler.switching or not sharded:
            return
        places = {at for r in scheduler.running.values() for at in (r.present, r.goal)}
        needed = {rank for at in places for rank in full_ranks(at, self.h.topo.ranks)}
        full = {pool.rank for pool in scheduler.store.pools if pool.full}
        assert self.h.topo.ranks == 1 or full <= needed

    def teardown(self) -> None:
        if not hasattr(self, "h"):
            return
        self.h.drain()
        for request, (num_prompt, max_tokens) in self.sizes.items():
            given = self.h.outputs[request]
            count = len(given) if request in self.aborted else max_tokens
            assert given == expected_tokens(request, num_prompt, count)
            assert self.h.reasons[request] == ("abort" if request in self.aborted else "length")
        store = self.h.scheduler.store
        store.collect(10**9)
        assert store.num_retiring == 0
        assert self.h.scheduler.transitions.ledger.idle
        for pool in store.pools:
            counts = pool.counts()
            weight = sum(1 for s in pool.slots if s.name == "RESIDENT") * pool.geometry.slot_pages
            assert counts[PageState.WEIGHT] == weight
            assert counts[PageState.FREE] == pool.geometry.num_pages - 1 - weight


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    suppress_health_check=list(HealthCheck),
    report_multiple_bugs=False,
)


@pytest.mark.parametrize("seed", range(8))
def test_fifty_switches_in_a_row(seed: int) -> None:
    rng = random.Random(seed)
    h = Harness(kv_pages=800, prefer_slots=True, max_model_len=2000)
    for n in (5, 17, 33, 8):
        h.add(n, 700)
    for _ in range(50):
        h.scheduler.set_target(rng.choice(sorted(LAYOUTS)), "test")
        for _ in range(rng.randint(1, 12)):
            h.step()
    h.drain()
    for request, n in enumerate((5, 17, 33, 8)):
        assert h.outputs[request] == expected_tokens(request, n, 700)
