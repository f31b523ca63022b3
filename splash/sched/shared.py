"""What all parts of a scheduler share."""

from __future__ import annotations

from dataclasses import dataclass

from splash.core.config import SchedulerConfig
from splash.kv.blocks import KVStore
from splash.sched.journal import Journal
from splash.sched.progress import Progress
from splash.sched.record import Record


@dataclass(frozen=True, slots=True)
class Shared:
    """The memory, who runs in it, and how that is to be done and told: the same objects for every part."""

    store: KVStore
    running: dict[int, Record]
    """By id, in order of admission. The roster alone changes it."""
    config: SchedulerConfig
    token_bytes: int
    """Of one token's KV in one group, all layers."""
    progress: Progress
    journal: Journal

    @property
    def page_bytes(self) -> int:
        """Of one KV page."""
        return self.token_bytes * self.store.block_size
