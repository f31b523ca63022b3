"""Who waits, who runs, and who has left: the only place where a request passes from one to the other."""

from __future__ import annotations

from splash.core.events import RequestAdmitted, RequestArrived, RequestPreempted
from splash.layout.layouts import Assignment
from splash.sched.decodes import Decodes
from splash.sched.draft import PlanDraft
from splash.sched.queue import WaitingQueue
from splash.sched.record import Record
from splash.sched.shared import Shared
from splash.sched.step import Admit
from splash.sched.transition import Transitions


class Roster:
    """State: every request that has not ended. `running` is shared with the transitions and the decodes."""

    def __init__(self, shared: Shared, *, transitions: Transitions, decodes: Decodes) -> None:
        self.known: dict[int, Record] = {}
        self.waiting = WaitingQueue()
        self.running = shared.running
        self.gone: list[int] = []
        """Left since the last plan: the executors must hear."""
        self._store = shared.store
        self._transitions = transitions
        self._decodes = decodes
        self._progress = shared.progress
        self._journal = shared.journal

    def arrive(self, record: Record) -> None:
        self.known[record.id] = record
        self.waiting.add(record)
        self._stir()
        self._journal.emit(
            RequestArrived(
                self._journal.now(), record.id, record.num_prompt, record.request.params.max_tokens
            )
        )

    def start(self, record: Record, goal: Assignment, draft: PlanDraft) -> None:
        """Admit the first in the queue, on its way to `goal`."""
        popped = self.waiting.pop()
        assert popped is record, "first come first served"
        record.goal = goal
        record.present = self._transitions.admit_as(goal)
        record.running = True
        record.state = self._store.take_state()
        self.running[record.id] = record
        draft.admits.append(
            Admit(
                record.id,
                tuple(record.tokens),
                record.num_prompt,
                record.request.params,
                record.seed,
                record.present,
                record.forced,
                tuple(map(tuple, record.state)),
            )
        )
        self._journal.emit(
            RequestAdmitted(self._journal.now(), record.id, record.present.layout.name, record.goal.home)
        )

    def preempt(self, record: Record, draft: PlanDraft) -> None:
        """Give up the pages; it will be recomputed from its tokens, before all who wait. All of them must be known."""
        assert not record.num_untold, f"request {record.id} is preempted with a token in flight"
        draft.forget(record.id)
        self._leave(record)
        record.computed = 0
        self.waiting.put_back(record)
        self._journal.emit(RequestPreempted(self._journal.now(), record.id, len(record.tokens)))

    def end(self, record: Record) -> None:
        """It has finished or was aborted, running or waiting."""
        if record.running:
            self._leave(record)
        else:
            self.waiting.remove(record)
        del self.known[record.id]

    def take_gone(self) -> list[int]:
        gone, self.gone = self.gone, []
        return gone

    @property
    def busy(self) -> bool:
        """Requests, or messages about them to the executors."""
        return bool(self.running or self.gone or len(self.waiting))

    @property
    def settled(self) -> bool:
        """The executors know all who have left."""
        return not self.gone

    def _leave(self, record: Record) -> None:
        """Out of the running table; the executors forget it with the next plan."""
        del self.running[record.id]
        if record.decoding:
            self._decodes.leave(record)
        self._transitions.forget(record, self._progress.planned)
        record.running = record.decoding = False
        record.next = None
        self.gone.append(record.id)
        self._stir()

    def _stir(self) -> None:
        self._progress.stirred = self._progress.planned + 1
