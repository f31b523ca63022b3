"""What a change of the target moves, and what it needs meanwhile: arithmetic on the balanced case (REFERENCE §3).

`layout.diff` says it page by page for one request; this is the mean over ranks, for choosing among layouts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from splash.layout.layouts import Placement


@dataclass(frozen=True, slots=True)
class ChangeCost:
    """What a change takes, as a cost model sees it."""

    num_bytes: float
    """That a rank receives."""
    copying_s: float
    """Until they have come, where copies have the links for themselves."""
    held_up_s: float
    """By which copying holds up the steps beside it, in all."""


@dataclass(frozen=True, slots=True)
class Change:
    """From where to where the tokens go that are held."""

    ranks: int
    groups: int
    """KV groups."""
    token_bytes: int
    """Of one token, all groups and layers."""
    tokens: Mapping[tuple[Placement, Placement], int]
    """Held, by present and next placement."""
    shards: int = 0
    """Head shards that a rank fetches."""
    shard_bytes: int = 0
    """Of one."""

    @property
    def kv_bytes(self) -> float:
        """That a rank receives, as a mean over ranks."""
        shares = (
            received_share(old, new, ranks=self.ranks, groups=self.groups) * count
            for (old, new), count in self.tokens.items()
        )
        return sum(shares) * self.token_bytes

    @property
    def weight_bytes(self) -> int:
        """That a rank receives."""
        return self.shards * self.shard_bytes

    @property
    def num_bytes(self) -> float:
        """That a rank receives."""
        return self.kv_bytes + self.weight_bytes

    def peak_bytes(self, staged_tokens: int) -> float:
        """KV bytes on a rank, as a mean, when most is held: `staged_tokens` lie in both places, and all others still
        where they were, or already where they shall be (REFERENCE §3)."""
        before = after = arriving = leaving = 0.0
        for (old, new), count in self.tokens.items():
            here = held_share(old, ranks=self.ranks, groups=self.groups)
            there = held_share(new, ranks=self.ranks, groups=self.groups)
            received = received_share(old, new, ranks=self.ranks, groups=self.groups)
            staged = min(count, staged_tokens)
            before, arriving = before + count * here, max(arriving, staged * received)
            after, leaving = after + count * there, max(leaving, staged * (here + received - there))
        return max(before + arriving, after + leaving) * self.token_bytes


def held_share(placement: Placement, *, ranks: int, groups: int) -> float:
    """Of a token's bytes, what a rank holds: its heads' group, or an even share."""
    return 1 / groups if placement is Placement.BY_HEAD else 1 / ranks


def received_share(old: Placement, new: Placement, *, ranks: int, groups: int) -> float:
    """Of a token's bytes, what a rank receives when the token moves."""
    missing = 1 - 1 / ranks
    if new is old:
        return 0.0
    if new is Placement.BY_HEAD:
        return missing / groups
    if old is Placement.BY_HEAD:
        return (1 - 1 / groups) / ranks
    return missing / ranks
