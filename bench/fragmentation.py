"""Recurrent states in pages: what it costs to want them in neighbouring pages (ADR 0009). Seeded, no model, seconds.

    python -m bench.fragmentation [--json FILE]

One rank's pool serves requests first come first served: each takes the pages of its state and its prompt at
admission, a page whenever a block of its output is full, and gives all back at the end. Places of a state:

    table    any free pages
    runs     the first free run, among the pages of the KV
    apart    the first free run from the one end, KV pages from the other
"""

from __future__ import annotations

import argparse
import json
import random
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

POOL_PAGES = 4096
STATE_PAGES = 25
"""GLM-5.3-Flash in bf16 on 8 ranks, blocks of 64 tokens: 18.5 MB in pages of 766 KB."""
BLOCK = 64
TICKS = 20_000
"""Of BLOCK decoded tokens each."""
SEED = 7


@dataclass
class Request:
    prompt_pages: int
    ticks_left: int
    pages: list[int]


@dataclass(frozen=True)
class Outcome:
    """Of one place of states. A request always waits; shares are of all ticks."""

    place: str
    admitted: int
    mean_running: float
    mean_free_share: float
    """Of the pool's pages, once no more requests could be admitted."""
    waited_for_neighbours: float
    """The pages were free, but no run of them."""
    preempted: int
    """Not admitted again."""


class Pool:
    def __init__(self) -> None:
        self.free = [True] * POOL_PAGES
        self.order = list(range(POOL_PAGES - 1, -1, -1))
        """As the engine's pool: what was freed last is given first."""
        self.num_free = POOL_PAGES

    def any(self, count: int) -> list[int]:
        pages: list[int] = []
        while len(pages) < count:
            page = self.order.pop()
            if self.free[page]:
                self.free[page] = False
                pages.append(page)
        self.num_free -= count
        return pages

    def highest(self, count: int) -> list[int]:
        pages = []
        for page in range(POOL_PAGES - 1, -1, -1):
            if len(pages) == count:
                break
            if self.free[page]:
                pages.append(page)
        return self._taken(pages)

    def run(self, count: int) -> list[int] | None:
        length = 0
        for page, free in enumerate(self.free):
            length = length + 1 if free else 0
            if length == count:
                return self._taken(list(range(page - count + 1, page + 1)))
        return None

    def release(self, pages: list[int]) -> None:
        for page in pages:
            self.free[page] = True
        self.order += pages
        self.num_free += len(pages)

    def _taken(self, pages: list[int]) -> list[int]:
        for page in pages:
            self.free[page] = False
        self.num_free -= len(pages)
        return pages


def simulate(place: str) -> Outcome:
    draw, pool = random.Random(SEED), Pool()
    kv: Callable[[int], list[int]] = pool.highest if place == "apart" else pool.any
    running: deque[Request] = deque()
    waiting = arrival(draw)
    admitted = preempted = for_neighbours = 0
    sum_running = sum_free = 0
    for _ in range(TICKS):
        for request in [r for r in running if r.ticks_left == 0]:
            running.remove(request)
            pool.release(request.pages)
        for request in list(running):
            while pool.num_free == 0 and running[-1] is not request:
                pool.release(running.pop().pages)
                preempted += 1
            if request in running and pool.num_free:
                request.pages += kv(1)
                request.ticks_left -= 1
        while pool.num_free >= STATE_PAGES + waiting.prompt_pages:
            state = pool.any(STATE_PAGES) if place == "table" else pool.run(STATE_PAGES)
            if state is None:
                for_neighbours += 1
                break
            waiting.pages = state + kv(waiting.prompt_pages)
            running.append(waiting)
            waiting = arrival(draw)
            admitted += 1
        sum_free += pool.num_free
        sum_running += len(running)
    return Outcome(
        place,
        admitted,
        round(sum_running / TICKS, 1),
        round(sum_free / TICKS / POOL_PAGES, 4),
        round(for_neighbours / TICKS, 4),
        preempted,
    )


def arrival(draw: random.Random) -> Request:
    """A prompt of 2K tokens in the median, an output of 500, log-normal."""
    prompt = min(int(draw.lognormvariate(7.6, 1.0)), 60_000)
    output = min(int(draw.lognormvariate(6.2, 0.8)), 8_000)
    return Request(-(-prompt // BLOCK), -(-output // BLOCK), [])


def main() -> None:
    parser = argparse.ArgumentParser(description="What states in neighbouring pages cost, simulated.")
    parser.add_argument("--json", type=Path, help="write the outcomes to this file")
    options = parser.parse_args()
    outcomes = [simulate(place) for place in ("table", "runs", "apart")]
    for outcome in outcomes:
        print(outcome)
    if options.json is not None:
        settings = {"pool_pages": POOL_PAGES, "state_pages": STATE_PAGES, "ticks": TICKS, "seed": SEED}
        found = {**settings, "outcomes": [asdict(outcome) for outcome in outcomes]}
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
