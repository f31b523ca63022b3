"""A plausible run as events: a burst in one layout, switches with copies, weights, toggles, a drain."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from splash.core import events as e

BYTES_PER_TOKEN = 4096
BLOCK = 16
SLOT_PAGES = 60
SHARD_BYTES = 6_000_000


@dataclass
class _Request:
    number: int
    layout: str
    home: int
    tokens: int
    left: int
    arrived_t: float
    generated: int = 0
    next: str | None = None
    staged_step: int = 0
    num_bytes: int = 0


@dataclass
class Run:
    """Emits the events of one run in the order of their times; nothing is random."""

    ranks: int = 2
    requests: int = 24
    switches: tuple[tuple[int, str, str], ...] = (
        (40, "dp", "24 short requests: replicas spread the attention"),
        (130, "dcp", "3 long requests are left: stripes balance their pages"),
        (190, "tp", "a long prompt is to come"),
    )
    """(step, layout, reason)."""
    num_pages: int = 2048
    last_step: int = 240
    copy_steps: int = 14
    note: str = ""
    model: str = "splash-demo (deepseek_v3, 3.1 M)"
    _t: float = 0.0
    _step: int = 0
    _live: list[_Request] = field(default_factory=list)
    _queue: list[_Request] = field(default_factory=list)
    _target: str = "tp"
    _slots: list[list[str]] = field(default_factory=list)

    def events(self) -> Iterator[e.Event]:
        yield e.RunStarted(
            0.0, self.model, "cpu", self.note, self.ranks, "tp", "auto", BLOCK, BLOCK * BYTES_PER_TOKEN,
            self.num_pages, SLOT_PAGES,
        )  # fmt: skip
        for rank in range(self.ranks):
            self._slots.append(["own" if shard == rank else "kv" for shard in range(self.ranks)])
            yield e.ResidencyChanged(0.0, 0, rank, list(self._slots[rank]))
        for number in range(self.requests):
            long = number % 8 == 0
            prompt, output = (
                (300 + 90 * number, 400) if long else (20 + 7 * number % 90, 60 + 5 * number % 50)
            )
            self._queue.append(_Request(number, "tp", number % self.ranks, prompt, output, 0.02))
            yield e.RequestArrived(0.02, number, prompt, output)
        self._t = 0.03
        switches = {step: (new, reason) for step, new, reason in self.switches}
        while self._step < self.last_step:
            if self._step in switches:
                yield from self._switch(*switches[self._step])
            yield from self._one_step()
        yield self._sample()
        yield e.RunFinished(self._t, "done", "all requests have finished")

    def _switch(self, new: str, reason: str) -> Iterator[e.Event]:
        old, begin, started_t = self._target, self._step, self._t
        self._target = new
        yield e.TargetChanged(self._t, self._step, old, new, reason, {new: 0.0121, old: 0.0193})
        staged = "dop" if new == "dp" else "dcp" if new == "cp" else new
        is_full = new in ("dp", "cp")
        moving = list(self._live)
        total = received = 0
        for request in moving:
            request.next, request.staged_step = staged, self._step
            request.num_bytes = request.tokens * BYTES_PER_TOKEN * (1 if staged != "dop" else 0) + 4096
            total += request.num_bytes
            yield e.StageStarted(
                self._t, self._step, request.number, request.layout, staged, request.home, request.home,
                request.num_bytes, self._links(request.num_bytes),
            )  # fmt: skip
        if is_full:
            yield from self._residency("kv", "draining")
        for copied in range(self.copy_steps):
            yield from self._one_step()
            shard = 0
            if is_full and copied == 2:
                yield from self._residency("draining", "filling")
            if is_full and copied > 2:
                shard = SHARD_BYTES // (self.copy_steps - 3)
            part = total // self.copy_steps
            left = (
                SHARD_BYTES * max(0, self.copy_steps - 1 - copied) // (self.copy_steps - 3) if is_full else 0
            )
            received += part
            yield e.CopyProgress(
                self._t, self._step, self._links(part), self._links(shard), 9 if is_full and copied < 2 else 0,
                int((1 - (copied + 1) / self.copy_steps) * len(moving) * 8), left,
            )  # fmt: skip
            if copied == self.copy_steps // 2:
                yield from self._flip(moving[: len(moving) // 2])
        yield from self._flip(moving)
        if is_full:
            yield from self._residency("filling", "replica")
            for request in self._live:
                if request.layout in ("dop", "dcp"):
                    old_layout, request.layout = request.layout, new
                    yield e.RequestFlipped(
                        self._t, self._step, request.number, old_layout, new, request.home, 0, 0
                    )
        elif new in ("tp", "dcp"):
            yield from self._residency("replica", "kv")
        weights = SHARD_BYTES * self.ranks if is_full else 0
        yield e.SwitchDone(
            self._t, self._step, old, new, reason, "done", self._step - begin, len(moving), received + weights,
            weights, self._t - started_t, 0.0011,
        )  # fmt: skip

    def _flip(self, requests: list[_Request]) -> Iterator[e.Event]:
        for request in requests:
            if request.next is None or request not in self._live:
                continue
            old, request.layout, request.next = request.layout, request.next, None
            yield e.RequestFlipped(
                self._t, self._step, request.number, old, request.layout, request.home,
                self._step - request.staged_step, request.num_bytes,
            )  # fmt: skip

    def _residency(self, before: str, after: str) -> Iterator[e.Event]:
        for rank, slots in enumerate(self._slots):
            if before in slots:
                slots[:] = [after if word == before else word for word in slots]
                yield e.ResidencyChanged(self._t, self._step, rank, list(slots))

    def _links(self, num_bytes: int) -> list[list[int]]:
        pairs = self.ranks * (self.ranks - 1)
        each = num_bytes // pairs if pairs else 0
        rest = num_bytes - each * pairs
        links = [[each if a != b else 0 for b in range(self.ranks)] for a in range(self.ranks)]
        links[0][-1] += rest
        return links

    def _one_step(self) -> Iterator[e.Event]:
        prefill = 0
        for request in self._queue[:3]:
            self._queue.remove(request)
            request.layout = self._target
            self._live.append(request)
            prefill += request.tokens
            yield e.RequestAdmitted(self._t, request.number, request.layout, request.home)
        self._step += 1
        forward = 0.008 + 0.0004 * len(self._live) + prefill * 2e-5
        self._t += forward + 0.0006
        rows: dict[str, int] = {}
        by_rank = [0] * self.ranks
        for request in self._live:
            rows[request.layout] = rows.get(request.layout, 0) + 1
            for rank in range(self.ranks):
                by_rank[rank] += request.layout in ("tp", "dcp", "cp") or rank == request.home
        yield e.StepDone(
            self._t, self._step, forward, 0.0006, len(self._live), prefill, rows, by_rank, 0, len(self._live)
        )
        for request in list(self._live):
            request.tokens += 1
            request.generated += 1
            if request.generated == 1:
                yield e.FirstToken(self._t, request.number, self._t - request.arrived_t)
            if request.generated == request.left:
                self._live.remove(request)
                yield e.RequestFinished(
                    self._t, request.number, "length" if request.number % 3 else "stop", request.generated,
                    0.03, (self._t - request.arrived_t) / request.generated,
                )  # fmt: skip
        if self._step % 4 == 0:
            yield self._sample()

    def _sample(self) -> e.PoolSampled:
        pages: list[dict[str, int]] = []
        for rank in range(self.ranks):
            use: dict[str, int] = {"weight": SLOT_PAGES * sum(w != "kv" for w in self._slots[rank])}
            for request in self._live:
                blocks = -(-request.tokens // BLOCK)
                if request.layout in ("dcp", "cp"):
                    blocks = -(-blocks // self.ranks)
                elif request.layout in ("dp", "dop") and rank != request.home:
                    blocks = 0
                use[request.layout] = use.get(request.layout, 0) + blocks
                if request.next is not None:
                    use["reserved"] = use.get("reserved", 0) + blocks // 2
            use["free"] = self.num_pages - sum(use.values())
            pages.append(use)
        running: dict[str, int] = {}
        for request in self._live:
            running[request.layout] = running.get(request.layout, 0) + 1
        staging = sum(request.next is not None for request in self._live)
        return e.PoolSampled(self._t, pages, running, len(self._queue), staging)
