"""`ViewState` folds the event stream into what a view shows; `Snapshot` is that at one moment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from splash.core.events import (
    CopyProgress,
    Event,
    FirstToken,
    PolicyAsked,
    PoolSampled,
    RequestAdmitted,
    RequestArrived,
    RequestFinished,
    RequestFlipped,
    RequestPreempted,
    RequestResumed,
    ResidencyChanged,
    RunFinished,
    RunStarted,
    StageCancelled,
    StageStarted,
    StepDone,
    SwitchDone,
    TargetChanged,
    TargetRefused,
)
from splash.tui.history import Band, History
from splash.tui.log import EventLog
from splash.tui.moves import Move, Transitions, WeightMove
from splash.tui.rates import Percentiles, Recent, SlidingRate
from splash.tui.texts import describe, kind_of, show_target, target_layouts
from splash.tui.units import clean

MAX_RANKS = 4096
"""A rank number beyond is a broken event, not a reason to allocate."""

LOG_WINDOW_S = 1.0
"""Like events of such a time are one line of the log."""
LINGER_S = 2.0
"""How long a finished move stays on view when no switch is open, so that short ones can be seen."""
RATE_SPAN_S = 2.0
"""Of the tokens per second."""


@dataclass(slots=True)
class RankState:
    """One rank: what its slots hold, its pages by use, the rows whose attention it ran in the last step."""

    slots: list[str] = field(default_factory=list)
    pages: dict[str, int] = field(default_factory=dict)
    rows: int = 0


@dataclass(slots=True)
class Totals:
    """Counts since the run began."""

    steps: int = 0
    output_tokens: int = 0
    arrived: int = 0
    finished: int = 0
    preempted: int = 0
    flips: int = 0
    switches: int = 0


@dataclass(frozen=True, slots=True)
class LogLine:
    t: float
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that the panels may look at. Nothing in it changes any more."""

    t: float
    run: RunStarted | None
    finished: RunFinished | None
    model: str
    hardware: str
    note: str
    target: str
    striped_from: int | None
    """Tokens from which a request of the target's layout is striped."""
    policy: str
    step: int
    ranks: tuple[RankState, ...]
    running: dict[str, int]
    rows_by_layout: dict[str, int]
    decode_rows: int
    prefill_rows: int
    waiting: int
    peak: int
    """The most requests, running and waiting, that there were at once."""
    staging: int
    away: int
    """Running requests that are not where the target wants them, as far as layouts tell."""
    flips_left: int
    moves: tuple[Move, ...]
    weights: WeightMove | None
    switch: TargetChanged | None
    last_switch: SwitchDone | None
    refused: TargetRefused | None
    asked: PolicyAsked | None
    """The latest question to a policy that predicts."""
    decided: PolicyAsked | None
    """The latest one that it answered with another target."""
    kv_bytes: int
    weight_bytes: int
    tokens_per_s: float
    totals: Totals
    ttft: Percentiles
    tpot: Percentiles
    forward: Percentiles
    boundary: Percentiles
    history: History
    log: tuple[LogLine, ...]

    @property
    def num_running(self) -> int:
        return sum(self.running.values())

    @property
    def whole_target(self) -> str:
        """With the layout of long requests, if that is another."""
        return show_target(self.target, self.striped_from)


class ViewState:
    """Folds events, a constant amount of work for each; memory grows with live requests only.

    It reads no clock: the time is that of the latest event.
    """

    def __init__(self, *, log_size: int = 50, speed: float = 1.0, log_window_s: float | None = None) -> None:
        """`speed`: seconds of the run in one of the viewer's; what is merged, averaged or kept on view for a while is
        so for as long as a viewer needs. `log_window_s` of the run are merged in the log whatever the speed."""
        self.t = 0.0
        self.version = 0
        """Grows with each event, so that a view knows whether there is anything new."""
        self.log = EventLog(
            size=log_size, window_s=LOG_WINDOW_S * speed if log_window_s is None else log_window_s
        )
        self._run: RunStarted | None = None
        self._finished: RunFinished | None = None
        self._target = ""
        self._striped_from: int | None = None
        self._step = 0
        self._ranks: list[RankState] = []
        self._layout_of: dict[int, str] = {}
        self._waiting_ids: set[int] = set()
        self._running: dict[str, int] = {}
        self._waiting = 0
        self._peak = 0
        self._staging = 0
        self._last_step: StepDone | None = None
        self._totals = Totals()
        self._asked: PolicyAsked | None = None
        self._decided: PolicyAsked | None = None
        self._transitions = Transitions(linger_s=LINGER_S * speed)
        self._band = Band()
        self._rate = SlidingRate(span_s=RATE_SPAN_S * speed)
        self._ttft, self._tpot = Recent(), Recent()
        self._forward, self._boundary = Recent(num_values=64), Recent(num_values=64)
        self._folds: dict[type, Callable[[Any], None]] = {
            RunStarted: self._run_started,
            RequestArrived: self._request_arrived,
            RequestAdmitted: self._request_admitted,
            FirstToken: self._first_token,
            RequestPreempted: self._request_preempted,
            RequestResumed: self._request_resumed,
            RequestFinished: self._request_finished,
            StepDone: self._step_done,
            TargetChanged: self._target_changed,
            PolicyAsked: self._policy_asked,
            TargetRefused: self._target_refused,
            StageStarted: self._stage_started,
            StageCancelled: self._stage_cancelled,
            RequestFlipped: self._request_flipped,
            CopyProgress: self._copy_progress,
            ResidencyChanged: self._residency_changed,
            SwitchDone: self._switch_done,
            PoolSampled: self._pool_sampled,
            RunFinished: self._run_finished,
        }

    def fold(self, event: Event) -> None:
        """Takes one event in. Events come in the order of their times."""
        self.t = max(self.t, event.t)
        self.version += 1
        self._folds[type(event)](event)

    def snapshot(self) -> Snapshot:
        """What there is to see now, apart from this state's further life."""
        run, moving, step = self._run, self._transitions, self._last_step
        return Snapshot(
            t=self.t,
            run=run,
            finished=self._finished,
            model=clean(run.model) if run else "",
            hardware=clean(run.hardware) if run else "",
            note=clean(run.note) if run else "",
            target=self._target,
            striped_from=self._striped_from,
            policy=clean(run.policy) if run else "",
            step=self._step,
            ranks=tuple(replace(rank) for rank in self._ranks),
            running={name: number for name, number in self._running.items() if number},
            rows_by_layout=dict(step.rows_by_layout) if step else {},
            decode_rows=step.decode_rows if step else 0,
            prefill_rows=step.prefill_rows if step else 0,
            waiting=self._waiting,
            peak=self._peak,
            staging=self._staging,
            away=self._away(),
            flips_left=len(moving.staging) if moving.switch is None else self._away(),
            moves=tuple(replace(move, links=dict(move.links)) for move in moving.moves.values()),
            weights=moving.weights,
            switch=moving.switch,
            last_switch=moving.last,
            refused=moving.refused,
            asked=self._asked,
            decided=self._decided,
            kv_bytes=moving.kv_bytes,
            weight_bytes=moving.weight_bytes,
            tokens_per_s=self._rate.at(self.t),
            totals=replace(self._totals),
            ttft=self._ttft.percentiles(),
            tpot=self._tpot.percentiles(),
            forward=self._forward.percentiles(),
            boundary=self._boundary.percentiles(),
            history=self._band.snapshot(),
            log=tuple(LogLine(entry.t, kind_of(entry), describe(entry)) for entry in self.log.latest()),
        )

    # --- the run

    def _run_started(self, event: RunStarted) -> None:
        self._run = event
        self._target = event.target
        if 0 < event.ranks <= MAX_RANKS:
            self._rank(event.ranks - 1)
        self.log.note(event)

    def _run_finished(self, event: RunFinished) -> None:
        self._advance(event.t)
        self._finished = event
        self.log.note(event)

    # --- requests

    def _request_arrived(self, event: RequestArrived) -> None:
        self._totals.arrived += 1
        self._waiting_ids.add(event.request)
        self._waiting += 1
        self.log.note(event, ("arrive",), num_tokens=event.num_prompt)

    def _request_admitted(self, event: RequestAdmitted) -> None:
        self._leave_queue(event.request)
        self._leave_layout(event.request)
        self._enter_layout(event.request, event.layout)
        self.log.note(event, ("admit", event.layout), word=str(event.home))

    def _first_token(self, event: FirstToken) -> None:
        self._ttft.add(event.ttft_s)

    def _request_preempted(self, event: RequestPreempted) -> None:
        self._totals.preempted += 1
        self._leave_layout(event.request)
        self._transitions.unstage(event.request, event.t)
        self._waiting_ids.add(event.request)
        self._waiting += 1
        self.log.note(event, ("preempt",), num_tokens=event.num_tokens)

    def _request_resumed(self, event: RequestResumed) -> None:
        self.log.note(event, ("resume",))

    def _request_finished(self, event: RequestFinished) -> None:
        self._totals.finished += 1
        self._leave_queue(event.request)
        self._leave_layout(event.request)
        self._transitions.unstage(event.request, event.t)
        self._tpot.add(event.tpot_s)
        self.log.note(event, ("finish",), num_tokens=event.num_tokens, word=event.reason)

    # --- steps

    def _step_done(self, event: StepDone) -> None:
        self._last_step = event
        self._step = event.step
        totals = self._totals
        totals.steps += 1
        totals.output_tokens += event.tokens
        for rank, rows in enumerate(event.rows_by_rank[:MAX_RANKS]):
            self._rank(rank).rows = rows
        self._rate.add(event.t, event.tokens)
        self._forward.add(event.forward_s)
        self._boundary.add(event.boundary_s)
        self._advance(event.t, event.tokens)
        self._transitions.settle(event.t)
        self.log.tick(event.t)

    def _pool_sampled(self, event: PoolSampled) -> None:
        self._advance(event.t)
        for rank, pages in enumerate(event.pages[:MAX_RANKS]):
            self._rank(rank).pages = pages
        self._running = dict(event.running)
        self._waiting = event.waiting
        if not event.running:
            self._last_step = None
            for state in self._ranks:
                state.rows = 0
        self._staging = event.staging
        self._transitions.settle(event.t)
        self.log.tick(event.t)

    # --- switches

    def _target_changed(self, event: TargetChanged) -> None:
        self._advance(event.t)
        self._target, self._striped_from = event.new, event.new_striped_from
        self._transitions.change_target(event)
        self.log.note(event)

    def _policy_asked(self, event: PolicyAsked) -> None:
        """The latest question, and the latest whose answer was a change."""
        self._asked = event
        if event.is_change:
            self._decided = event
            self.log.note(event, ("ask", show_target(event.chosen, event.chosen_striped_from)))

    def _target_refused(self, event: TargetRefused) -> None:
        self._transitions.refused = event
        self.log.note(event)

    def _switch_done(self, event: SwitchDone) -> None:
        self._totals.switches += event.outcome == "done"
        self._transitions.end_switch(event)
        self.log.note(event)

    def _stage_started(self, event: StageStarted) -> None:
        self._transitions.stage(event)
        self._staging = len(self._transitions.staging)
        self.log.note(
            event, ("stage", event.old, event.new), num_bytes=event.num_bytes, links=event.bytes_by_link
        )

    def _stage_cancelled(self, event: StageCancelled) -> None:
        self._transitions.cancel(event)
        self._staging = len(self._transitions.staging)
        self.log.note(event, ("cancel", event.new, event.reason))

    def _request_flipped(self, event: RequestFlipped) -> None:
        self._totals.flips += 1
        self._transitions.flip(event)
        self._staging = len(self._transitions.staging)
        self._leave_layout(event.request, event.old)
        self._enter_layout(event.request, event.new)
        how = "toggle" if event.staged_steps == 0 else "flip"
        self.log.note(event, (how, event.old, event.new), num_bytes=event.num_bytes, steps=event.staged_steps)

    def _copy_progress(self, event: CopyProgress) -> None:
        self._transitions.copy(event)

    def _residency_changed(self, event: ResidencyChanged) -> None:
        if not 0 <= event.rank < MAX_RANKS:
            return
        rank = self._rank(event.rank)
        before, rank.slots = rank.slots, list(event.slots)
        is_busy = any(word in ("filling", "draining") for state in self._ranks for word in state.slots)
        self._transitions.slots_changed(is_busy, event.t)
        changes = Counter((old, new) for old, new in zip(before, event.slots, strict=False) if old != new)
        for (old, new), number in changes.items():
            self.log.note(event, ("slots", old, new), word=str(event.rank), num_words=number)

    # --- helpers

    def _advance(self, t: float, tokens: int = 0) -> None:
        self._band.advance(t, self._running, self._target, tokens)
        self._peak = max(self._peak, sum(self._running.values()) + self._waiting)

    def _rank(self, rank: int) -> RankState:
        while len(self._ranks) <= rank:
            self._ranks.append(RankState())
        return self._ranks[rank]

    def _enter_layout(self, request: int, layout: str) -> None:
        self._layout_of[request] = layout
        self._running[layout] = self._running.get(layout, 0) + 1

    def _leave_layout(self, request: int, otherwise: str = "") -> None:
        layout = self._layout_of.pop(request, otherwise)
        if self._running.get(layout, 0) > 0:
            self._running[layout] -= 1

    def _leave_queue(self, request: int) -> None:
        if request in self._waiting_ids:
            self._waiting_ids.discard(request)
            self._waiting = max(0, self._waiting - 1)

    def _away(self) -> int:
        there = target_layouts(self._target, self._striped_from)
        return sum(number for name, number in self._running.items() if name not in there)
