"""Virtual time in whole nanoseconds, so that a run repeats bit for bit however its steps are taken."""

from __future__ import annotations

from splash.sim.workload import NANOSECONDS


class VirtualClock:
    """Stands still until it is moved; never backwards."""

    def __init__(self) -> None:
        self.now_ns = 0

    def now(self) -> float:
        return seconds(self.now_ns)

    def move_to(self, time_ns: int) -> None:
        assert time_ns >= self.now_ns, "time does not run backwards"
        self.now_ns = time_ns


def seconds(time_ns: int) -> float:
    return time_ns / NANOSECONDS
