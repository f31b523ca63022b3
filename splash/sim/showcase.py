"""A load for somebody who watches: three phases, each a little more than the deployment carries, so that the best
layout changes a few times within minutes of its clock."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from splash.layout.layouts import LAYOUTS, Layout, assigned
from splash.layout.work import DecodeRows, PromptRows, Work
from splash.sched.batch import RowBytes, chunk_method
from splash.sim.deployment import SimDeployment
from splash.sim.generators import PhaseShift
from splash.sim.lengths import CHAT_OUTPUT, CHAT_PROMPT
from splash.sim.named import described
from splash.sim.workload import Workload

NAME = "phase-shift"
PHASES = PhaseShift(
    chat_s=30.0, long_s=25.0, long_share=0.25, longest=98304, gap_s=5.0, prompts=48, samples=8
)
"""But for the rate, which is the deployment's."""
MAX_OUTPUT = 2048
"""Output tokens of a request at most: the longest rollouts alone would take many minutes."""
OVERLOAD = 1.2
"""Requests that arrive over those that the best layout carries, as in the headline experiment."""
ROWS = 256
"""Decodes of a step at which the deployment counts as busy."""


def showcase(deployment: SimDeployment, *, seed: int) -> Workload:
    """`phase-shift`, short, at a rate that overloads this deployment."""
    phases = replace(PHASES, rate=float(f"{OVERLOAD * carried_rate(deployment):.3g}"))
    arrivals = phases.arrivals(np.random.default_rng(seed))
    return Workload(NAME, arrivals, note=f"{described(phases)}, seed={seed}").capped(MAX_OUTPUT)


def carried_rate(deployment: SimDeployment) -> float:
    """Chats per second that the best fixed layout serves, as its cost model says: in a step of `ROWS` decodes as many
    prompt tokens are computed as replace the chats that end in it."""
    chats_a_step = ROWS / CHAT_OUTPUT.mean
    return max(
        chats_a_step / deployment.cost.step_s(_busy_step(deployment, layout)) for layout in LAYOUTS.values()
    )


def _busy_step(deployment: SimDeployment, layout: Layout) -> Work:
    """Its rows spread evenly over the ranks."""
    ranks = deployment.topo.ranks
    rows = -(-ROWS // ranks)
    context = round(rows * (CHAT_PROMPT.mean + CHAT_OUTPUT.mean / 2))
    chunk = round(ROWS / CHAT_OUTPUT.mean * CHAT_PROMPT.mean / ranks)
    row_bytes = RowBytes.of(deployment.spec)
    places = [assigned(layout, home) for home in range(ranks)]
    return Work(
        tuple(DecodeRows(at, rows, context, context) for at in places),
        tuple(PromptRows(at, chunk_method(at, 0, chunk, row_bytes, ranks), 0, chunk) for at in places),
        sampled=ROWS,
    )
