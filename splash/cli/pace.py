"""Events at a pace that can be watched."""

from __future__ import annotations

import time


class Pace:
    """Waits until an event is due: its time in the run, divided by the speed. 0 waits for nothing.

    What comes late because it took long to compute moves all that follows: there is no rush to catch up.
    """

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self._start_s = time.monotonic()

    def wait(self, t: float) -> None:
        if not self._speed:
            return
        early_s = self._start_s + t / self._speed - time.monotonic()
        if early_s > 0:
            time.sleep(early_s)
        else:
            self._start_s -= early_s
