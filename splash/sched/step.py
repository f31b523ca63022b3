"""A step as data: the plan that a scheduler returns and the result that an executor gives back.

Plans are deltas. An executor mirrors per request {tokens, computed length, present, next, pages}
and per rank {resident shards}; a plan says only what changes, then which rows to compute. Whatever
decides a collective (rows, assignments, methods) is in the plan, so all ranks agree on it.

Order of effects within one plan: `residents`, `gone`, `admits`, `state_moves`, `grants`, `moves`, `shadows`,
`flips`, `stages` (a flip ends a staging; a stage after it begins one or goes on with it); then the forward pass over
`decodes` and `chunks`; then `copies`, in the background where the port can. Their acknowledgements may come
with any later result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple, Protocol

from splash.core.params import SamplingParams
from splash.layout.layouts import LAYOUTS, Assignment, assigned
from splash.layout.rows import Method


@dataclass(frozen=True, slots=True)
class Admit:
    """A request enters the executors' mirror (also again, after a preemption).

    `tokens` is all that is known: prompt and what was generated before a preemption. The first
    `num_prompt` of them are the prompt. `forced` replaces the sampled tokens (teacher forcing):
    the token after `tokens[num_prompt + i - 1]` is `forced[i]`, whatever is sampled.
    """

    request: int
    tokens: tuple[int, ...]
    num_prompt: int
    params: SamplingParams
    seed: int
    at: Assignment
    forced: tuple[int, ...] = ()
    state: tuple[tuple[int, ...], ...] = ()
    """Per rank the pages of its recurrent state, which the rank zeroes; empty for models without."""


class PageGrant(NamedTuple):
    """`rank` uses `page` for (block, group) of the request, and zeroes it first."""

    request: int
    block: int
    group: int
    rank: int
    page: int
    filled: bool = False
    """Copies fill it whole before anybody reads it: it need not be zeroed."""


class Shadow(NamedTuple):
    """From this step on appends to (block, group) on `rank` go to `page` too (it is zeroed): evacuation."""

    request: int
    block: int
    group: int
    rank: int
    page: int


class PageMove(NamedTuple):
    """From this step on (block, group) on `rank` is `page`, already filled; ends its shadow."""

    request: int
    block: int
    group: int
    rank: int
    page: int


class StateMove(NamedTuple):
    """`rank` copies page `place` of the request's recurrent state to `page` before the step, and uses that from now on:
    it leaves a weight slot that fills up again."""

    request: int
    place: int
    rank: int
    page: int


class Stage(NamedTuple):
    """Appends go to holders(next) too from this step on; None ends the staging (cancelled)."""

    request: int
    next: Assignment | None


class Flip(NamedTuple):
    """Reads, appends and projection of `requests` follow `at` from this step on; ends their stagings. Requests that
    flip alike are one flip: many at once are the rule, and each would cost the boundary its own pickle."""

    requests: tuple[int, ...]
    at: Assignment


class Resident(NamedTuple):
    """The head shards that `rank` may read from this step on."""

    rank: int
    shards: frozenset[int]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Prompt rows [start, start + count); samples a token iff it reaches the end of what is known."""

    request: int
    start: int
    count: int
    method: Method


class PageCopy(NamedTuple):
    """Tokens [first, stop) of a page, all layers and fields, from one rank's page to another's."""

    id: int
    src_rank: int
    src_page: int
    dst_rank: int
    dst_page: int
    first: int
    stop: int


class ShardCopy(NamedTuple):
    """Bytes [first, stop) of head shard `shard`, from its owner's slot to the same slot of `dst_rank`."""

    id: int
    dst_rank: int
    shard: int
    first: int
    stop: int


class StepPlan(NamedTuple):
    """What every rank does in one step. Empty `decodes` and `chunks`: a tick (copies, flips only).

    `decodes` are request ids in the global section order, one row each, whose input is the last known
    token; those of dop, dcp and cp meet their history by `Method.EXCHANGE`. `chunks` are in that order too.
    """

    step: int
    residents: tuple[Resident, ...] = ()
    gone: tuple[int, ...] = ()
    """Requests to forget; an id that the executor does not know is ignored."""
    admits: tuple[Admit, ...] = ()
    state_moves: tuple[StateMove, ...] = ()
    grants: tuple[PageGrant, ...] = ()
    shadows: tuple[Shadow, ...] = ()
    moves: tuple[PageMove, ...] = ()
    stages: tuple[Stage, ...] = ()
    flips: tuple[Flip, ...] = ()
    decodes: tuple[int, ...] = ()
    chunks: tuple[Chunk, ...] = ()
    copies: tuple[PageCopy | ShardCopy, ...] = ()

    @property
    def num_rows(self) -> int:
        return len(self.decodes) + sum(c.count for c in self.chunks)

    @property
    def changes(self) -> bool:
        """It tells more than rows and copies."""
        fields: tuple[Any, ...] = self
        return any(fields[_CHANGES])

    @property
    def values(self) -> list[Any]:
        """For `of`: its fields in order. Grants, copies and flips are numbers and strings: they are pickled at many
        boundaries, copies by the hundred, where every object of a class costs a lookup at either end."""
        values: list[Any] = list(self)
        if self.grants:
            values[_GRANTS] = [tuple(grant) for grant in self.grants]
        if self.flips:
            values[_FLIPS] = [(requests, at.layout.name, at.home) for requests, at in self.flips]
        if self.copies:
            values[_COPIES] = _in_columns(self.copies)
        return values

    @classmethod
    def of(cls, values: list[Any]) -> StepPlan:
        """The plan whose `values` these are."""
        if grants := values[_GRANTS]:
            values[_GRANTS] = tuple(map(PageGrant._make, grants))
        if flips := values[_FLIPS]:
            values[_FLIPS] = tuple([Flip(them, assigned(LAYOUTS[name], home)) for them, name, home in flips])
        if copies := values[_COPIES]:
            values[_COPIES] = _of_columns(copies)
        return cls(*values)


_GRANTS, _FLIPS, _COPIES = map(StepPlan._fields.index, ("grants", "flips", "copies"))
_CHANGES = slice(StepPlan._fields.index("residents"), StepPlan._fields.index("decodes"))

Columns = list[tuple[bool, list[tuple[int, ...]]]]


def _in_columns(copies: Sequence[PageCopy | ShardCopy]) -> Columns:
    """Runs of one kind, whether of shards, and a tuple for each of their fields."""
    return [(kind is ShardCopy, [*zip(*run, strict=True)]) for kind, run in groupby(copies, type)]


def _of_columns(runs: Columns) -> tuple[PageCopy | ShardCopy, ...]:
    """The copies that are `_in_columns`."""
    copies: list[PageCopy | ShardCopy] = []
    for shards, fields in runs:
        copies += map(ShardCopy._make if shards else PageCopy._make, zip(*fields, strict=True))
    return tuple(copies)


class StepResult(NamedTuple):
    """What came out of a step.

    `tokens`: one per decode in plan order, then one per chunk that sampled, in plan order; under teacher forcing
    the forced token.
    `gaps`: as `tokens`, the logit of the best token less that of the forced one (0 if equal), or less the
    second best when nothing is forced; empty unless the executor was asked for gaps.
    `acks`: ids of copies that completed since the last result. `started_s`/`ended_s`: the first rank's
    start and the last rank's end of the forward pass on the host's monotonic clock, seconds (0 in a tick).
    `copied_s`: seconds that the copies of `acks` took on the rank where they took longest; 0 where nobody timed them.
    """

    step: int
    tokens: tuple[int, ...] = ()
    acks: tuple[int, ...] = ()
    gaps: tuple[float, ...] = ()
    started_s: float = 0.0
    ended_s: float = 0.0
    copied_s: float = 0.0

    @property
    def forward_s(self) -> float:
        return self.ended_s - self.started_s


class Executor(Protocol):
    """Turns plans into results, in order. `submit` returns at once; `collect` waits for the oldest."""

    def submit(self, plan: StepPlan) -> None: ...

    def collect(self) -> StepResult: ...

    def close(self) -> None: ...


class Clock(Protocol):
    def now(self) -> float:
        """Seconds on a monotonic clock."""
        ...


@dataclass(slots=True)
class ManualClock:
    """A clock that tests and the simulator set."""

    time_s: float = field(default=0.0)

    def now(self) -> float:
        return self.time_s
