"""All that can be observed, as one typed stream: view, metrics, traces, replay and tests fold it.

Every event carries `t`, the engine clock in seconds since the run began. Layouts are named, ranks are
lists in rank order, so that an event is plain data; `to_json` and `from_json` round-trip it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from splash.core.plain import made


@dataclass(frozen=True, slots=True)
class RunStarted:
    t: float
    model: str
    hardware: str
    note: str
    """What a viewer must know of the run, e.g. that it is simulated; empty if nothing."""
    ranks: int
    target: str
    policy: str
    block_size: int
    page_bytes: int
    num_pages: int
    """Per rank: slots, null page and ordinary pages."""
    slot_pages: int


@dataclass(frozen=True, slots=True)
class RequestArrived:
    t: float
    request: int
    num_prompt: int
    max_tokens: int


@dataclass(frozen=True, slots=True)
class RequestAdmitted:
    """Its first chunk is about to run (again, after a preemption)."""

    t: float
    request: int
    layout: str
    home: int


@dataclass(frozen=True, slots=True)
class FirstToken:
    t: float
    request: int
    ttft_s: float


@dataclass(frozen=True, slots=True)
class RequestPreempted:
    """Its pages were taken and it will be recomputed."""

    t: float
    request: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class RequestResumed:
    """It gives tokens again after a preemption, `gap_s` after the last one before it."""

    t: float
    request: int
    gap_s: float


@dataclass(frozen=True, slots=True)
class RequestFinished:
    t: float
    request: int
    reason: str
    num_tokens: int
    """Output tokens."""
    ttft_s: float | None
    tpot_s: float | None


@dataclass(frozen=True, slots=True)
class StepDone:
    """`boundary_s`: from the end of the previous forward pass to the start of this one; `flips`: requests
    that flipped at that boundary."""

    t: float
    step: int
    forward_s: float
    boundary_s: float
    decode_rows: int
    prefill_rows: int
    rows_by_layout: dict[str, int]
    rows_by_rank: list[int]
    """Rows whose attention ran on each rank (replicated ones count on each)."""
    flips: int
    tokens: int
    """Output tokens that this step gave."""


@dataclass(frozen=True, slots=True)
class TargetChanged:
    """The engine's target layout. `predicted` maps a layout to the policy's figure for it, if it has any.
    `old_striped_from`, `new_striped_from`: tokens from which requests of an owner layout are striped; None: none is."""

    t: float
    step: int
    old: str
    new: str
    reason: str
    predicted: dict[str, float]
    old_striped_from: int | None = None
    new_striped_from: int | None = None


@dataclass(frozen=True, slots=True)
class PolicyAsked:
    """What the policy predicts: seconds of a step of decodes by layout, and what late ones took under the target."""

    t: float
    step: int
    target: str
    chosen: str
    reason: str
    """Empty where it stays."""
    predicted: dict[str, float]
    observed_s: float | None
    target_striped_from: int | None = None
    chosen_striped_from: int | None = None

    @property
    def is_change(self) -> bool:
        """Whether it answers with another target."""
        return (self.chosen, self.chosen_striped_from) != (self.target, self.target_striped_from)


@dataclass(frozen=True, slots=True)
class TargetRefused:
    """A target cannot be reached; serving goes on as it is."""

    t: float
    step: int
    target: str
    reason: str


@dataclass(frozen=True, slots=True)
class StageStarted:
    """A request's KV begins to move in the background."""

    t: float
    step: int
    request: int
    old: str
    new: str
    old_home: int
    new_home: int
    num_bytes: int
    bytes_by_link: list[list[int]]
    """[source][destination] bytes."""


@dataclass(frozen=True, slots=True)
class StageCancelled:
    t: float
    step: int
    request: int
    new: str
    reason: str


@dataclass(frozen=True, slots=True)
class RequestFlipped:
    """`staged_steps`: steps from staging to flip; 0 for a toggle of the projection."""

    t: float
    step: int
    request: int
    old: str
    new: str
    home: int
    staged_steps: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """Bytes that arrived since the last such event, [source][destination]; KV and weights apart."""

    t: float
    step: int
    kv_bytes: list[list[int]]
    weight_bytes: list[list[int]]
    evacuated_pages: int
    pages_left: int
    """Copies planned and not yet acknowledged, KV pages."""
    weight_bytes_left: int


@dataclass(frozen=True, slots=True)
class ResidencyChanged:
    """`slots` of a rank, one word per shard: own | replica | filling | draining | kv."""

    t: float
    step: int
    rank: int
    slots: list[str]


@dataclass(frozen=True, slots=True)
class SwitchDone:
    """All requests that are running have reached the target (or the target was replaced). Layouts are told as by
    `TargetChanged`."""

    t: float
    step: int
    """In which it ended, `steps` after it began; after the result of its last flips' step, whose boundary counts."""
    old: str
    new: str
    reason: str
    outcome: str
    """done | superseded | cancelled."""
    steps: int
    requests: int
    bytes_received: int
    """KV and weights together, over all ranks."""
    weight_bytes_received: int
    seconds: float
    max_boundary_s: float
    old_striped_from: int | None = None
    new_striped_from: int | None = None


@dataclass(frozen=True, slots=True)
class PoolSampled:
    """Pages of each rank by use: free, weight, reserved, retiring, cached and live by layout name."""

    t: float
    pages: list[dict[str, int]]
    running: dict[str, int]
    """Requests by layout."""
    waiting: int
    staging: int


@dataclass(frozen=True, slots=True)
class RunFinished:
    t: float
    outcome: str
    """done | interrupted | failed."""
    detail: str


Event = (
    RunStarted
    | RequestArrived
    | RequestAdmitted
    | FirstToken
    | RequestPreempted
    | RequestResumed
    | RequestFinished
    | StepDone
    | TargetChanged
    | PolicyAsked
    | TargetRefused
    | StageStarted
    | StageCancelled
    | RequestFlipped
    | CopyProgress
    | ResidencyChanged
    | SwitchDone
    | PoolSampled
    | RunFinished
)

EventSink = Callable[[Event], None]

EVENT_TYPES: dict[str, type[Event]] = {cls.__name__: cls for cls in Event.__args__}


def to_json(event: Event) -> dict[str, Any]:
    """Plain data with the event's name under "event"."""
    return {"event": type(event).__name__, **asdict(event)}


def from_json(data: Mapping[str, Any]) -> Event:
    """The inverse of `to_json`, where what has a default may be absent; ValueError names an unknown event or a wrong
    field."""
    name = data.get("event")
    if not isinstance(name, str) or name not in EVENT_TYPES:
        raise ValueError(f"unknown event {name!r}; known: {', '.join(EVENT_TYPES)}")
    return made(EVENT_TYPES[name], {k: v for k, v in data.items() if k != "event"}, f"event {name}")
