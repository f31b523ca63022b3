"""What is under way: requests whose KV moves, weights that arrive, and the switch they belong to."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from splash.core.events import (
    CopyProgress,
    RequestFlipped,
    StageCancelled,
    StageStarted,
    SwitchDone,
    TargetChanged,
    TargetRefused,
)


@dataclass(slots=True)
class Move:
    """All requests that go from one layout to another in the present transition."""

    old: str
    new: str
    requests: int = 0
    flipped: int = 0
    num_bytes: int = 0
    """To be copied in all; shadow writes are not among them."""
    copied: int = 0
    flipped_bytes: int = 0
    links: dict[tuple[int, int], int] = field(default_factory=dict)
    """Bytes to be copied from one rank to another."""
    closed_t: float | None = None

    @property
    def arrived(self) -> int:
        """Copies are reported per link, flips per request: the larger is known to have arrived."""
        return min(self.num_bytes, max(self.copied, self.flipped_bytes))

    @property
    def flips_left(self) -> int:
        return self.requests - self.flipped

    @property
    def share(self) -> float:
        """Progress from 0 to 1; without bytes to copy it is that of the flips."""
        if self.flips_left == 0:
            return 1.0
        return self.arrived / self.num_bytes if self.num_bytes else self.flipped / self.requests

    def expect(self, stage: StageStarted, sign: int) -> None:
        """Adds a staged request (+1), or takes it out again (-1)."""
        self.requests += sign
        self.num_bytes += sign * stage.num_bytes
        for source, row in enumerate(stage.bytes_by_link):
            for destination, amount in enumerate(row):
                if amount:
                    link = (source, destination)
                    left = self.links.get(link, 0) + sign * amount
                    if left > 0:
                        self.links[link] = left
                    else:
                        self.links.pop(link, None)


@dataclass(frozen=True, slots=True)
class WeightMove:
    """Weight shards on their way into slots, and the KV pages that made room for them."""

    arrived: int = 0
    left: int = 0
    evacuated_pages: int = 0
    is_done: bool = False
    """No slot is filling or draining any more; with bytes left it was given up."""

    @property
    def num_bytes(self) -> int:
        return self.arrived + self.left

    @property
    def share(self) -> float:
        if self.num_bytes:
            return self.arrived / self.num_bytes
        return 1.0 if self.is_done else 0.0


@dataclass(slots=True)
class Transitions:
    """Folds the events of switches, stagings and copies."""

    linger_s: float = 0.0
    """How long a finished move stays on view when no switch is open."""
    switch: TargetChanged | None = None
    """The change of target that has not ended."""
    last: SwitchDone | None = None
    refused: TargetRefused | None = None
    """Until the target changes."""
    moves: dict[tuple[str, str], Move] = field(default_factory=dict)
    staging: dict[int, StageStarted] = field(default_factory=dict)
    weights: WeightMove | None = None
    pages_left: int = 0
    weights_closed_t: float = 0.0
    slots_busy: bool = False
    """Whether any rank's slot is filling or draining."""
    kv_bytes: int = 0
    weight_bytes: int = 0
    """Moved since the run began."""

    def change_target(self, event: TargetChanged) -> None:
        self.refused = None
        self.switch = event
        self._drop_closed(before=event.t)

    def end_switch(self, event: SwitchDone) -> None:
        self.last = event
        opened = self.switch
        if opened is not None and (opened.new, opened.new_striped_from) == (
            event.new,
            event.new_striped_from,
        ):
            self.switch = None

    def stage(self, event: StageStarted) -> None:
        self.unstage(event.request)
        self.staging[event.request] = event
        move = self._move(event.old, event.new)
        move.closed_t = None
        move.expect(event, +1)

    def cancel(self, event: StageCancelled) -> None:
        self.unstage(event.request, event.t)

    def unstage(self, request: int, t: float = 0.0) -> None:
        """The request moves no more: cancelled, finished, preempted."""
        stage = self.staging.pop(request, None)
        if stage is None:
            return
        move = self.moves.get((stage.old, stage.new))
        if move is not None:
            move.expect(stage, -1)
            if move.requests == 0:
                del self.moves[stage.old, stage.new]
            else:
                self._close_if_flipped(move, t)

    def flip(self, event: RequestFlipped) -> None:
        """A request has flipped; a toggle of its projection ends no staging that it is in."""
        stage = self.staging.pop(event.request, None) if event.staged_steps else None
        if stage is None:
            move = self._move(event.old, event.new)
            move.requests += 1
            move.num_bytes += event.num_bytes
        else:
            move = self._move(stage.old, stage.new)
        move.flipped += 1
        move.flipped_bytes += event.num_bytes if stage is None else stage.num_bytes
        self._close_if_flipped(move, event.t)

    def copy(self, event: CopyProgress) -> None:
        for source, row in enumerate(event.kv_bytes):
            for destination, amount in enumerate(row):
                if amount and source != destination:
                    self.kv_bytes += amount
                    self._credit((source, destination), amount)
        self.pages_left = event.pages_left
        arrived = sum(map(sum, event.weight_bytes))
        self.weight_bytes += arrived
        if arrived or event.weight_bytes_left or event.evacuated_pages or self.weights is not None:
            now = self._weights_open()
            self.weights = replace(
                now,
                arrived=now.arrived + arrived,
                left=event.weight_bytes_left,
                evacuated_pages=now.evacuated_pages + event.evacuated_pages,
            )
            if not self.slots_busy and event.weight_bytes_left == 0:
                self._close_weights(event.t)

    def slots_changed(self, is_busy: bool, t: float) -> None:
        self.slots_busy = is_busy
        if is_busy:
            self.weights = self._weights_open()
        else:
            self._close_weights(t)

    def settle(self, t: float) -> None:
        """Takes finished moves off the view once they were seen."""
        if self.switch is None and (self.moves or self.weights is not None):
            self._drop_closed(before=t - self.linger_s)

    def _weights_open(self) -> WeightMove:
        return WeightMove() if self.weights is None or self.weights.is_done else self.weights

    def _close_weights(self, t: float) -> None:
        if self.weights is not None and not self.weights.is_done:
            self.weights = replace(self.weights, is_done=True)
            self.weights_closed_t = t

    def _drop_closed(self, *, before: float) -> None:
        closed = [
            k for k, move in self.moves.items() if move.closed_t is not None and move.closed_t <= before
        ]
        for key in closed:
            del self.moves[key]
        if self.weights is not None and self.weights.is_done and self.weights_closed_t <= before:
            self.weights = None

    def _move(self, old: str, new: str) -> Move:
        return self.moves.setdefault((old, new), Move(old, new))

    def _close_if_flipped(self, move: Move, t: float) -> None:
        if move.flips_left == 0:
            move.closed_t = t

    def _credit(self, link: tuple[int, int], amount: int) -> None:
        """Gives bytes of a link to the oldest open move that expects some there; any rest is evacuation."""
        for move in self.moves.values():
            if link in move.links and move.copied < move.num_bytes:
                given = min(amount, move.num_bytes - move.copied)
                move.copied += given
                amount -= given
                if not amount:
                    return
