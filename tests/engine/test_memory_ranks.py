"""What rank processes hold in memory, as the kernel counts it."""

from __future__ import annotations

import pytest

from bench.memory import EXTRA_BYTES, measure
from splash.core.config import DEMO

pytestmark = pytest.mark.ranks


def test_ranks_hold_their_weights_their_pools_and_little_else() -> None:
    """Red when ranks keep the checkpoint's files mapped, a second copy of the weights, or large workspaces."""
    held = measure(DEMO, ranks=2)
    assert held.bound == held.weights + held.pools + 2 * EXTRA_BYTES
    assert 0 < held.shards < held.pools
    assert held.pss > 50_000_000, "an interpreter with torch takes more: this is not a rank"
    assert held.fits, held
