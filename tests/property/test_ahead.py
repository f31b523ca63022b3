"""Steps planned while ranks compute the step before: nothing waits for a result, and nobody is served otherwise."""

from __future__ import annotations

import pytest

from splash.core.events import FirstToken, RequestPreempted, StepDone, SwitchDone
from splash.core.params import SamplingParams
from splash.core.request import Request
from splash.layout.layouts import LAYOUTS
from splash.sched.results import Output
from tests.property.harness import PAIRS, Harness, expected_tokens


def rows_of(h: Harness, request: int) -> int:
    """Decode rows that were planned for it."""
    return sum(request in plan.decodes for plan in h.plans)


@pytest.mark.parametrize("ahead", [0, 1, 2])
@pytest.mark.parametrize("max_tokens", [1, 2, 3, 9])
@pytest.mark.parametrize("num_prompt", [1, 4, 5, 40])
def test_a_request_has_as_many_rows_as_tokens(num_prompt: int, max_tokens: int, ahead: int) -> None:
    """Red when a row is planned behind the last token that a request may have: it would be computed for nobody, at a
    position that it may not have. The prompt's last chunk gives the first token."""
    h = Harness(ahead=ahead)
    request, other = h.add(num_prompt, max_tokens), h.add(7, 20)
    h.drain()
    assert rows_of(h, request) == max_tokens - 1
    for number, prompt, count in ((request, num_prompt, max_tokens), (other, 7, 20)):
        assert h.outputs[number] == expected_tokens(number, prompt, count)
        assert h.reasons[number] == "length"
    assert sum(isinstance(event, FirstToken) for event in h.events) == 2


@pytest.mark.parametrize("ahead", [1, 2])
def test_steady_plans_do_not_wait_for_results(ahead: int) -> None:
    """Red when a step of decodes is planned only with the tokens of the one before in hand."""
    h = Harness(ahead=ahead, kv_pages=200)
    for _ in range(4):
        h.add(5, 40)
    for _ in range(8):
        h.step()
    for _ in range(20):
        assert h.scheduler.in_flight == ahead
        assert h.begin()
        h.scheduler.prepare()
        assert len(h.plans[-1].decodes) == 4
        h.end()


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_who_ends_by_a_token_has_a_row_for_each_plan_ahead(ahead: int) -> None:
    """Red when a token sampled behind a stop token is given out, or its row is planned once more."""
    h = Harness(ahead=ahead, kv_pages=20)
    stop = expected_tokens(0, 6, 10)[7]
    h.scheduler.add(Request(0, tuple(range(1, 7)), SamplingParams(max_tokens=30, stop_token_ids=(stop,))))
    h.outputs[0], h._next_id = [], 1
    others = [h.add(9, 25) for _ in range(3)]
    h.drain()
    assert h.outputs[0] == expected_tokens(0, 6, 8)
    assert h.reasons[0] == "stop"
    assert rows_of(h, 0) == 7 + ahead
    for request in others:
        assert h.outputs[request] == expected_tokens(request, 9, 25)


@pytest.mark.parametrize("ahead", [1, 2])
def test_an_abort_with_tokens_in_flight_is_final(ahead: int) -> None:
    """Red when a token that comes after the abort is given out, or kept."""
    h = Harness(ahead=ahead)
    request, other = h.add(6, 30), h.add(6, 30)
    for _ in range(10):
        h.step()
    assert h.scheduler.in_flight == ahead
    given = len(h.outputs[request])
    h.abort(request)
    h.drain()
    assert len(h.outputs[request]) == given
    assert h.reasons[request] == "abort"
    assert h.outputs[other] == expected_tokens(other, 6, 30)


@pytest.mark.parametrize("ahead", [1, 2])
@pytest.mark.parametrize("kv_pages", [7, 8, 10])
def test_who_gives_way_is_chosen_with_all_results_in(kv_pages: int, ahead: int) -> None:
    """Red when a request is preempted while a result is in flight: its token would be lost, and the result might have
    freed the memory. 7 pages of 16, two requests of 34 + 35 tokens; as many preemptions as without planning ahead."""
    preempted = []
    for depth in (0, ahead):
        h = Harness(ranks=1, kv_pages=kv_pages, slot_pages=1, block_size=16, watermark_pages=0, ahead=depth)
        requests = [h.add(34, 35), h.add(34, 35)]
        h.drain()
        preempted.append(sum(isinstance(event, RequestPreempted) for event in h.events))
        for request in requests:
            assert h.outputs[request] == expected_tokens(request, 34, 35)
    assert preempted[0] == preempted[1]
    assert preempted[0] == (kv_pages < 10)


@pytest.mark.parametrize("ahead", [1, 2])
def test_prompts_that_end_together_may_lack_pages(ahead: int) -> None:
    """Red when those that decode from the next plan on are not counted among those that need pages: one of them would
    be preempted with its first token in flight. Their prompts fill their blocks, and there is no other page."""
    h = Harness(ranks=1, kv_pages=2, slot_pages=1, watermark_pages=0, ahead=ahead)
    requests = [h.add(4, 4), h.add(4, 4)]
    h.drain()
    for request in requests:
        assert h.outputs[request] == expected_tokens(request, 4, 4)
    assert any(isinstance(event, RequestPreempted) for event in h.events)


@pytest.mark.parametrize("ahead", [1, 2])
def test_a_shortage_is_over_when_it_is_over(ahead: int) -> None:
    """Red when nothing is planned ahead any more once memory was short."""
    h = Harness(ranks=1, kv_pages=7, slot_pages=1, block_size=16, watermark_pages=0, ahead=ahead)
    for _ in range(2):
        h.add(34, 35)
    h.drain()
    assert any(isinstance(event, RequestPreempted) for event in h.events)
    h.add(5, 60)
    for _ in range(10):
        h.step()
    for _ in range(20):
        assert h.scheduler.in_flight == ahead
        h.step()


def full_ranks_in_dp(replicas: str) -> Harness:
    """A request at rest in `dp`, with the step that computes it in flight."""
    h = Harness(target="dp", kv_pages=100, ahead=1, replicas=replicas)
    h.add(9, 100)
    h.step()
    h.settle()
    assert h.scheduler.in_flight == 1
    assert all(pool.full for pool in h.scheduler.store.pools)
    return h


def test_slots_that_nobody_needs_wait_for_their_last_reader() -> None:
    """Red when the slots of replicas become pages while a step in flight may read them."""
    h = full_ranks_in_dp("drop")
    h.scheduler.set_target("dop", "test")
    while h.begin() and not h.plans[-1].residents:
        h.scheduler.prepare()
        h.end()
    assert all(pool.full for pool in h.scheduler.store.pools)
    h.scheduler.prepare()
    h.end()
    assert not any(pool.full for pool in h.scheduler.store.pools)


def test_slots_that_are_kept_warm_wait_for_their_last_reader() -> None:
    """Red when the slots of replicas that are given up become pages while a step in flight may read them."""
    h = full_ranks_in_dp("keep")
    h.scheduler.set_target("dop", "test")
    h.step()
    h.settle()
    assert h.scheduler.in_flight == 1
    assert h.scheduler.transitions.drop_warm_replicas(h.plans[-1].step)
    assert all(pool.full for pool in h.scheduler.store.pools)
    h.end()
    assert not any(pool.full for pool in h.scheduler.store.pools)


@pytest.mark.parametrize(
    ("ranks", "kv_pages", "target", "max_chunk", "token_budget", "delay", "requests"),
    [
        (1, 6, "dop", 8, 16, 0, [(20, 4), (4, 4)]),
        (1, 6, "dop", 8, 16, 0, [(16, 4), (8, 4)]),
        (1, 6, "dop", 4, 16, 0, [(4, 4), (16, 4), (4, 4)]),
        (1, 10, "tp", 8, 8, 3, [(8, 4), (8, 4), (20, 4)]),
        (1, 12, "tp", 4, 8, 0, [(20, 4), (16, 4), (8, 4)]),
        (1, 6, "dop", 4, 8, 0, [(4, 4), (20, 4), (4, 4), (8, 8)]),
        (2, 6, "tp", 8, 8, 0, [(8, 8), (20, 8)]),
    ],
)
def test_a_prompt_without_room_takes_none_from_who_has_a_token_in_flight(
    ranks: int,
    kv_pages: int,
    target: str,
    max_chunk: int,
    token_budget: int,
    delay: int,
    requests: list[tuple[int, int]],
) -> None:
    """Red when a chunk that finds no page preempts while results are in flight, or waits for longer than for these."""
    plans = []
    for ahead in (0, 1):
        h = Harness(
            ranks=ranks,
            kv_pages=kv_pages,
            slot_pages=1,
            target=target,
            watermark_pages=0,
            max_chunk=max_chunk,
            token_budget=token_budget,
            delay=delay,
            ahead=ahead,
        )
        for num_prompt, max_tokens in requests:
            h.add(num_prompt, max_tokens)
        h.drain()
        plans.append(len(h.plans))
        for request, (num_prompt, max_tokens) in enumerate(requests):
            assert h.outputs[request] == expected_tokens(request, num_prompt, max_tokens)
    assert plans[1] <= plans[0] + 3


@pytest.mark.parametrize(
    ("slot_pages", "old", "kv_pages", "token_budget", "after", "requests"),
    [
        (1, "dop", 8, 8, 1, [(24, 8), (28, 4)]),
        (3, "dcp", 10, 16, 2, [(28, 8), (16, 2), (24, 2), (16, 8)]),
    ],
)
def test_prompts_that_lack_pages_do_not_wait_for_a_switch(
    slot_pages: int, old: str, kv_pages: int, token_budget: int, after: int, requests: list[tuple[int, int]]
) -> None:
    """Red when ticks of a switch, whose copies take long here, are planned ahead: there would always be one in flight,
    and prompts that hold each other's pages would wait until the switch is over."""
    plans = []
    for ahead in (0, 1):
        h = Harness(
            ranks=2,
            kv_pages=kv_pages,
            slot_pages=slot_pages,
            target=old,
            watermark_pages=0,
            max_chunk=4,
            token_budget=token_budget,
            copy_bytes_per_step=64,
            delay=20,
            ahead=ahead,
        )
        for num_prompt, max_tokens in requests:
            h.add(num_prompt, max_tokens)
        for _ in range(after):
            h.step()
        h.scheduler.set_target("tp", "test")
        h.drain()
        plans.append(len(h.plans))
    assert plans[1] <= plans[0] + 3


@pytest.mark.parametrize(("old", "new"), PAIRS)
def test_a_switch_takes_few_steps_more(old: str, new: str) -> None:
    """Red when copies wait for acknowledgements that come a step later now, so that half of the bandwidth is idle; or
    when a switch is closed before the boundary of its last flips was counted."""
    steps = []
    for ahead in (0, 1):
        h = Harness(
            target=old,
            kv_pages=400,
            token_budget=1024,
            max_chunk=1024,
            copy_bandwidth=1e6,  # five pages a step
            transition_slack_steps=200,
            ahead=ahead,
        )
        for _ in range(4):
            h.add(64, 300)
        h.step()
        h.settle()
        before = h.plans[-1].step
        h.executor.step_s = 0.01
        h.executor.boundary_s = lambda plan: 0.5 if plan.flips else 0.001
        h.scheduler.set_target(new, "test")
        h.settle()
        h.scheduler.drain_events()
        done = [event for event in h.events if isinstance(event, SwitchDone) and event.new == new][-1]
        assert done.outcome == "done"
        assert done.max_boundary_s == pytest.approx(0.5)
        told = [e for e in h.events if isinstance(e, StepDone) and e.flips and e.step > before]
        flips = [event.boundary_s for event in told]
        assert flips
        assert flips == pytest.approx([0.5] * len(flips))
        steps.append(done.steps)
        h.drain()
        for request in range(4):
            assert h.outputs[request] == expected_tokens(request, 64, 300)
    assert steps[1] <= 1.1 * steps[0] + 4


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_steps_are_told_with_their_own_rows(layout: str) -> None:
    """Red when a step is told with the rows, flips or tokens of the one that was planned after it."""
    told = []
    for ahead in (0, 1):
        h = Harness(target=layout, ahead=ahead, kv_pages=200)
        h.scheduler.set_target(layout, "test")
        h.settle()
        for num_prompt in (3, 9, 20):
            h.add(num_prompt, 12)
        h.drain()
        done = [event for event in h.events if isinstance(event, StepDone)]
        told.append(
            [(s.decode_rows, s.prefill_rows, s.rows_by_layout, s.rows_by_rank, s.tokens) for s in done]
        )
    assert told[0] == told[1]


def test_outputs_come_in_order() -> None:
    """Red when results are taken in another order than that of their plans."""
    h = Harness(ahead=2)
    h.add(5, 10)
    seen: list[Output] = []
    while h.begin():
        h.scheduler.prepare()
    while h.scheduler.in_flight:
        seen += h.scheduler.update(h.executor.collect())
    tokens = [token for output in seen for token in output.tokens]
    assert tokens == expected_tokens(0, 5, 10)
