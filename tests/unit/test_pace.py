"""How much may be copied beside a step: a share of its time, at the rate that copies were seen to have."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from splash.core.config import SchedulerConfig
from splash.sched.pace import Pace

CONFIG = SchedulerConfig(copy_share=0.05, copy_bandwidth=10e9)
STEP_S = 0.1


def pace() -> Pace:
    """Whose steps take STEP_S, so that the configuration has 50 MB copied beside one."""
    found = Pace(CONFIG, page_bytes=4096)
    found.note_times(0.0, STEP_S, steady=True)
    assert found.copy_budget(idle=False) == 50_000_000
    return found


def copy_for(pace: Pace, seconds: Callable[[int], float], *, steps: int) -> float:
    """Copies as many bytes as it may beside each of `steps`; the seconds that the last ones took."""
    taken = 0.0
    for _ in range(steps):
        num_bytes = pace.copy_budget(idle=False)
        taken = seconds(num_bytes)
        pace.note_copies(num_bytes, taken)
    return taken


@pytest.mark.parametrize("rate", [1e9, 7e9, 30e9])
def test_copies_take_their_share_on_any_machine(rate: float) -> None:
    """Red when the budget follows the profile and not the machine, or what a list of copies takes beside its bytes is
    left out."""

    def seconds(num_bytes: int) -> float:
        return 0.0005 + num_bytes / rate

    assert copy_for(pace(), seconds, steps=12) == pytest.approx(CONFIG.copy_share * STEP_S, rel=0.05)


def test_a_policy_is_told_the_rate_of_late() -> None:
    """Red when moves are predicted at the configured rate."""
    slow = pace()
    assert slow.copy_bytes_per_s == CONFIG.copy_share * 10e9
    copy_for(slow, lambda num_bytes: num_bytes / 2e9, steps=20)
    assert slow.copy_bytes_per_s == pytest.approx(CONFIG.copy_share * 2e9, rel=0.01)


def test_a_few_bytes_say_little_about_many() -> None:
    """Red when one page that took long, as a single one does, makes the next switch a slow one."""
    found = pace()
    for _ in range(20):
        found.note_copies(4096, 50e-6)
    assert found.copy_budget(idle=False) > 49_000_000


@pytest.mark.parametrize(("num_bytes", "seconds"), [(50_000_000, 0.0), (0, 1e-6)])
def test_what_nobody_timed_or_copied_teaches_nothing(num_bytes: int, seconds: float) -> None:
    """Red when a simulator, whose ranks time no copies, plans other than by its cost model's rate, to the byte."""
    found = pace()
    found.note_copies(num_bytes, seconds)
    assert found.copy_budget(idle=False) == 50_000_000
    assert found.copy_bytes_per_s == CONFIG.copy_share * 10e9


def test_passes_that_overlap_have_no_boundary() -> None:
    """Red when a boundary is negative: a rank may begin a step while another ends the one before."""
    found = pace()
    found.note_times(0.0, 1.0, steady=True)
    assert found.note_times(0.999, 2.0, steady=True) == 0.0
    assert found.note_times(2.5, 3.0, steady=True) == 0.5
