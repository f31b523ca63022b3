"""What to become: what somebody asked for, or the policy answers when it is asked."""

from __future__ import annotations

from collections import deque

from splash.core.events import PolicyAsked
from splash.layout.layouts import layout_named
from splash.sched.arriving import Arrived
from splash.sched.observe import load_of
from splash.sched.pace import Pace
from splash.sched.policy import Decision, Policy
from splash.sched.roster import Roster
from splash.sched.shared import Shared
from splash.sched.target import Target, target_named
from splash.sched.transition import Transitions

SHORT_STEPS = 8
"""Steps for which a lack of memory is remembered."""
RECENT_ARRIVALS = 64
RECENT_STEPS = 64
"""What came last tells what will come: so many requests at least, or those of so many steps where these are more."""
MAX_ARRIVALS = 256
"""Requests that are remembered."""


class Aim:
    """Holds a wish from when it is made until the background takes it up, and asks the policy for the next."""

    def __init__(
        self,
        policy: Policy | None,
        shared: Shared,
        *,
        roster: Roster,
        transitions: Transitions,
        pace: Pace,
    ) -> None:
        self._policy = policy
        self._store = shared.store
        self._roster = roster
        self._transitions = transitions
        self._pace = pace
        self._progress = shared.progress
        self._journal = shared.journal
        self._wanted: Decision | None = None
        self._refused: dict[Target, int] = {}
        """Targets that did not fit, with the free pages of that moment: not asked for again until there are more."""
        self._asked = 0
        """Step of the last question to the policy."""
        self._long_rows = shared.config.token_budget // 2
        """Prompt tokens that take so long that the policy is asked again after them."""
        self._rows = 0
        """Prompt tokens computed since then."""
        self._arrived: deque[Arrived] = deque(maxlen=MAX_ARRIVALS)

    @property
    def wished(self) -> bool:
        """Something is asked for and not yet taken up."""
        return self._wanted is not None

    @property
    def switching(self) -> bool:
        """A target is asked for, or a transition is open."""
        return self.wished or self._transitions.open

    def want(
        self, layout_name: str, reason: str, *, striped_from: int | None = None, keep_policy: bool = False
    ) -> None:
        """Ask for a layout (ConfigError if there is none of that name), and stay there unless the policy is kept."""
        layout_named(layout_name)
        if not keep_policy:
            self._policy = None
        self._wanted = Decision(layout_name, reason, striped_from=striped_from)

    def note_prompt(self, num_tokens: int) -> None:
        """A request with so long a prompt has arrived."""
        self._arrived.append(Arrived(self._progress.planned + 1, num_tokens))

    def quiet_steps(self, step: int) -> int | None:
        """Steps from `step` on in which the policy is not asked, if nothing stirs; None: it never is."""
        if self._policy is None:
            return None
        return 0 if self._rows >= self._long_rows else self._next_question(self._policy) - step

    def ask_when_due(self, step: int, num_prompt: int) -> None:
        """Put the question, unless it was put lately or a switch is open. `num_prompt` tokens of prompts are computed
        in `step`: with many of them few steps are a long time."""
        self._rows += num_prompt
        if self._policy is None or self.switching:
            return
        if step >= self._next_question(self._policy) or self._rows >= self._long_rows:
            self._ask(self._policy, step)

    def ask_at_once(self, step: int) -> None:
        """Nothing runs: what waits is better admitted under the right target."""
        if self._policy is not None and len(self._roster.waiting) and not self.switching:
            self._ask(self._policy, step)

    def take_up(self, step: int) -> None:
        """Aim for what was asked for: in the background, since goals and room of all requests are looked at."""
        if self._wanted is None:
            return
        wanted, self._wanted = self._wanted, None
        target = target_named(wanted.target, wanted.striped_from)
        if target == self._transitions.target and self._transitions.complete:
            return
        if self._transitions.retarget(
            target, wanted.reason, list(self._roster.waiting), step, wanted.predicted
        ):
            self._refused.clear()
        else:
            self._refused[target] = self._store.num_free

    def _recent(self, step: int) -> tuple[Arrived, ...]:
        """The last arrivals; older ones are forgotten."""
        arrived = self._arrived
        while len(arrived) > RECENT_ARRIVALS and arrived[0].step < step - RECENT_STEPS:
            arrived.popleft()
        return tuple(arrived)

    def _next_question(self, policy: Policy) -> int:
        """The step in which the policy is asked next: soon if the load has changed since the last time."""
        stirred = self._progress.stirred >= self._asked
        return self._asked + (policy.period_steps if stirred else policy.calm_period_steps)

    def _ask(self, policy: Policy, step: int) -> None:
        """Want what the answer says; a target that was refused only with more free pages."""
        self._asked, self._rows = step, 0
        now = self._transitions.target
        load = load_of(
            step,
            self._roster.running.values(),
            list(self._roster.waiting),
            now,
            memory_bound=step - self._progress.short <= SHORT_STEPS,
            arrived=self._recent(step),
            refused=[target for target, free in self._refused.items() if self._store.num_free <= free],
            decode_s=self._pace.decode_s,
            copy_bytes_per_s=self._pace.copy_bytes_per_s,
        )
        decision = policy.decide(load)
        if decision is None:
            return
        wanted = target_named(decision.target, decision.striped_from)
        if decision.predicted:
            self._journal.emit(
                PolicyAsked(
                    self._journal.now(),
                    step,
                    now.name,
                    decision.target,
                    decision.reason,
                    decision.predicted,
                    self._pace.decode_s,
                    now.striped_from,
                    wanted.striped_from,
                )
            )
        if wanted != now and wanted not in load.refused:
            self._wanted = decision
