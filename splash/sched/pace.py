"""How long steps and copies take: running means, and what that leaves for background copies."""

from __future__ import annotations

from splash.core.config import SchedulerConfig

IDLE_COPY_FACTOR = 4
"""With no rows to disturb, copies may take this many times the budget of a step."""
TIME_WEIGHT = 0.2
"""Of one step in the means of times."""
RATE_WEIGHT = 0.5
"""Of a step's copies in their mean rate: a switch has few such steps, and a machine may be far from its profile."""


class Pace:
    """Means over the last steps with rows, in seconds on the engine's clock."""

    def __init__(self, config: SchedulerConfig, *, page_bytes: int) -> None:
        """`page_bytes` (of one KV page) is what a step may copy however short it is."""
        self._config = config
        self._page_bytes = page_bytes
        self._last_end_s: float | None = None
        self.step_s = 0.0
        """Of a step's own time; 0: not known yet."""
        self.decode_s: float | None = None
        """From step to step while all rows are decodes where the target wants them; None: they are not."""
        self._copy_rate = config.copy_bytes_per_s
        """Bytes per second, at first as the configuration has it."""

    @property
    def copy_bytes_per_s(self) -> float:
        """At which copies arrive on a rank, with the share of the time that they have."""
        return self._config.copy_share * self._copy_rate

    def rest(self) -> None:
        """The next step does not follow another: the time before it is no boundary."""
        self._last_end_s = None

    def note_times(self, started_s: float, ended_s: float, *, steady: bool) -> float:
        """Returns the boundary before the step: none where a rank began before the last had ended the one before.
        `steady`: decodes alone, all of them where the target wants them."""
        last_end_s, self._last_end_s = self._last_end_s, ended_s
        forward_s = ended_s - started_s
        self.step_s = _mean(self.step_s, forward_s) if self.step_s else forward_s
        if last_end_s is None:
            return 0.0
        if steady:
            step_s = ended_s - last_end_s
            self.decode_s = step_s if self.decode_s is None else _mean(self.decode_s, step_s)
        else:
            self.decode_s = None
        return max(0.0, started_s - last_end_s)

    def note_copies(self, num_bytes: int, seconds: float) -> None:
        """`num_bytes` have come to a rank, which took `seconds` (0: nobody timed it). Fewer than a step's budget count
        for less: what a copy takes beside its bytes would hide what the bytes take."""
        if num_bytes and seconds:
            weight = RATE_WEIGHT * min(1.0, num_bytes / self.copy_budget(idle=False))
            self._copy_rate += weight * (num_bytes / seconds - self._copy_rate)

    def copy_budget(self, *, idle: bool) -> int:
        """Bytes that each source and destination may copy in the next step; `idle`: beside a step without rows."""
        config = self._config
        if idle:
            return config.copy_bytes_per_step * IDLE_COPY_FACTOR
        if not self.step_s:
            return config.copy_bytes_per_step
        return max(self._page_bytes, int(config.copy_share * self.step_s * self._copy_rate))


def _mean(mean: float, value: float) -> float:
    return (1 - TIME_WEIGHT) * mean + TIME_WEIGHT * value
