"""What tests of switches share: serve references, switch meanwhile, and the tokens are transformers'."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch

from splash.core.events import RequestFlipped, RequestPreempted
from splash.layout.layouts import LAYOUTS
from tests.engine.served import Served
from tests.property.harness import PAIRS
from tests.tiny import Reference

TOLERANCE = 1e-4
"""Of logits in fp32, whatever the order of summation."""
STAY_TOKENS = 20
"""Served in a layout that stays: five pages more, so that every rank of four has some of each request."""
FEW_TOKENS = 12
"""Of eight ranks, which are slow as threads."""
SWITCH_STEPS = 18
"""Steps of a switch before the way back begins."""


def assert_equal(served: Served, refs: Sequence[Reference], requests: Sequence[int]) -> None:
    """What was served so far is what transformers computes: the tokens, and the logits that they were chosen from."""
    for ref, request in zip(refs, requests, strict=True):
        seen = torch.stack(served.logits[request])
        assert tuple(served.outputs[request]) == ref.token_ids[: len(seen)], f"prompt of {len(ref.prompt)}"
        assert (seen - ref.logits[: len(seen)]).abs().max() < TOLERANCE


def serve_in(served: Served, layout: str, refs: Sequence[Reference]) -> None:
    """All of `refs` at once, from their first token on in one layout."""
    served.step()
    served.switch(layout)
    most = FEW_TOKENS if served.deployment.config.ranks == 8 else STAY_TOKENS
    requests = [served.add(ref.prompt, min(most, len(ref.token_ids))) for ref in refs]
    served.drain()
    assert_equal(served, refs, requests)


def switch_all_pairs(served: Served, refs: Sequence[Reference], *, first_steps: int) -> None:
    """One deployment a pair would cost start-ups only: settle in A, serve `first_steps` steps, switch to B, and back
    for A -> B -> A."""
    reached: set[tuple[str, str]] = set()
    for old, new in PAIRS:
        served.switch(old)
        requests = [served.add(ref.prompt, len(ref.token_ids)) for ref in refs]
        served.steps(first_steps)
        served.scheduler.set_target(new, "test")
        served.step()
        for _ in range(SWITCH_STEPS):
            if not served.scheduler.switching:
                break
            served.step()
        reached |= {(old, r.present.layout.name) for r in served.scheduler.running.values()}
        served.scheduler.set_target(old, "back")
        served.drain()
        assert_equal(served, refs, requests)
        served.logits.clear()
    assert reached >= set(PAIRS), "requests were served in the new layout while they ran"


def switch_at_random(
    served: Served, refs: Sequence[Reference], draw: random.Random, *, times: int, own_goals: bool
) -> None:
    """Switches with arrivals and aborts in between; with `own_goals` single requests move on their own too."""
    scheduler, layouts = served.scheduler, sorted(LAYOUTS)
    expected: dict[int, Reference] = {}
    aborted: set[int] = set()
    for _ in range(times):
        scheduler.set_target(draw.choice(layouts), "test")
        if len(scheduler.running) + len(scheduler.waiting) < 6:
            ref = draw.choice(refs)
            expected[served.add(ref.prompt, len(ref.token_ids))] = ref
        if draw.random() < 0.2 and scheduler.running:
            request = draw.choice(sorted(scheduler.running))
            served.abort(request)
            aborted.add(request)
        if own_goals and draw.random() < 0.2 and scheduler.running:
            request = draw.choice(sorted(scheduler.running))
            ranks = served.deployment.config.ranks
            scheduler.set_goal(request, draw.choice(layouts), draw.randrange(ranks))
        served.steps(draw.randint(1, 6))
    served.drain()
    for request, ref in expected.items():
        given = tuple(served.outputs[request])
        if request in aborted:
            assert served.reasons[request] in ("abort", "length")
            assert given == ref.token_ids[: len(given)]
        else:
            assert given == ref.token_ids
    assert any(isinstance(e, RequestFlipped) for e in served.events)


def serve_more_than_fits(served: Served, layout: str, refs: Sequence[Reference]) -> None:
    """Requests that cannot all grow in the pool: some are preempted, and no token changes."""
    served.step()
    served.switch(layout)
    requests = [served.add(ref.prompt, len(ref.token_ids)) for ref in refs]
    served.drain()
    for ref, request in zip(refs, requests, strict=True):
        assert tuple(served.outputs[request]) == ref.token_ids
    assert any(isinstance(e, RequestPreempted) for e in served.events)


def tour(start: str, draw: random.Random) -> list[str]:
    """Layouts such that each of the 20 ordered pairs is passed once (Hierholzer), from `start`."""
    left = {a: draw.sample([b for b in LAYOUTS if b != a], 4) for a in LAYOUTS}
    stack, path = [start], []
    while stack:
        if left[stack[-1]]:
            stack.append(left[stack[-1]].pop())
        else:
            path.append(stack.pop())
    return path[::-1]
