"""The scheduler's parts, and which of them knows which."""

from __future__ import annotations

from dataclasses import dataclass

from splash.sched.admission import Admission
from splash.sched.aim import Aim
from splash.sched.batch import RowBytes
from splash.sched.decodes import Decodes
from splash.sched.growth import Growth
from splash.sched.observe import PoolSamples
from splash.sched.pace import Pace
from splash.sched.policy import Policy
from splash.sched.results import Results
from splash.sched.roster import Roster
from splash.sched.rows import Rows
from splash.sched.shared import Shared
from splash.sched.target import Target
from splash.sched.transition import Transitions


@dataclass(frozen=True, slots=True)
class Parts:
    """A noun each, over what they share."""

    shared: Shared
    pace: Pace
    transitions: Transitions
    decodes: Decodes
    roster: Roster
    growth: Growth
    admission: Admission
    rows: Rows
    aim: Aim
    results: Results
    samples: PoolSamples


def make_parts(shared: Shared, *, target: Target, policy: Policy | None, row_bytes: RowBytes) -> Parts:
    """Each part is given those that it asks, which come before it."""
    pace = Pace(shared.config, page_bytes=shared.page_bytes)
    transitions = Transitions(shared, target)
    decodes = Decodes(shared.running)
    roster = Roster(shared, transitions=transitions, decodes=decodes)
    growth = Growth(shared, roster=roster, decodes=decodes, transitions=transitions)
    admission = Admission(shared, roster=roster, transitions=transitions)
    rows = Rows(shared, roster=roster, decodes=decodes, growth=growth, row_bytes=row_bytes)
    aim = Aim(policy, shared, roster=roster, transitions=transitions, pace=pace)
    results = Results(shared, roster=roster, transitions=transitions, aim=aim, pace=pace)
    samples = PoolSamples(shared, roster.waiting)
    return Parts(shared, pace, transitions, decodes, roster, growth, admission, rows, aim, results, samples)
