"""A request as the scheduler knows it: its tokens, its blocks, where it is and where it shall go."""

from __future__ import annotations

from typing import TYPE_CHECKING

from splash.core.request import Request
from splash.kv.blocks import Block
from splash.layout.layouts import Assignment

if TYPE_CHECKING:
    from splash.sched.staging import Staging


class Record:
    """Mutable state of one request. Invariant: `computed <= room` while it runs.

    `computed` counts tokens whose KV is written, or will be by the plans handed out so far; it may be ahead of
    `tokens`, which are those that results have told. A request decodes when only its last token is not computed and
    that token was sampled, or will be; before that its tokens run as prompt chunks, also those generated before a
    preemption.
    """

    __slots__ = (
        "arrival_s",
        "blocks",
        "computed",
        "decoding",
        "first_token_s",
        "forced",
        "goal",
        "id",
        "last_token_s",
        "limit",
        "next",
        "num_prompt",
        "present",
        "request",
        "room",
        "running",
        "seed",
        "staging",
        "state",
        "stops",
        "stranded",
        "tokens",
    )

    def __init__(
        self,
        request: Request,
        *,
        goal: Assignment,
        seed: int,
        stops: frozenset[int],
        max_model_len: int,
        forced: tuple[int, ...],
    ) -> None:
        self.request = request
        self.id = request.id
        self.tokens = list(request.prompt)
        self.num_prompt = len(request.prompt)
        self.limit = min(self.num_prompt + request.params.max_tokens, max_model_len)
        """Length at which it finishes."""
        self.seed = seed
        self.stops = stops
        self.forced = forced
        self.arrival_s = request.arrival_s
        self.first_token_s: float | None = None
        self.last_token_s = 0.0
        self.running = False
        """It has blocks and the executors know it."""
        self.decoding = False
        self.computed = 0
        self.blocks: list[Block] = []
        self.state: list[list[int]] = []
        """Per rank the pages of its recurrent state; empty for models without, and while it waits."""
        self.room = 0
        """Tokens that its blocks can hold."""
        self.present = goal
        self.next: Assignment | None = None
        """Set from the plan in which the staging begins until the flip."""
        self.goal = goal
        self.staging: Staging | None = None
        self.stranded = False
        """Its move was given up; the goal is where it is."""

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def num_untold(self) -> int:
        """Tokens that plans sample and whose results are not in."""
        return max(0, self.computed + 1 - len(self.tokens))

    @property
    def ends(self) -> bool:
        """The last token that it may have is sampled, or will be by the plans handed out so far (while it decodes)."""
        return self.computed + 1 >= self.limit

    @property
    def remaining(self) -> int:
        """Tokens still to be computed before the next one can be sampled."""
        return len(self.tokens) - self.computed

    @property
    def assignments(self) -> tuple[Assignment, ...]:
        """All that its blocks must satisfy: present, and what is being staged (even before it is announced)."""
        if self.staging is None:
            return (self.present,)
        return self.present, self.staging.next

    @property
    def placed(self) -> bool:
        """Its KV lies where its goal wants it."""
        return self.present.same_place(self.goal)
