"""Whether what other targets promise is believed: a gain that is small, or comes and goes, must be seen more often."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from splash.layout.layouts import Layout
from splash.sched.target import Target


@dataclass(frozen=True, slots=True)
class Caution:
    """How sure a policy wants to be before it changes the target."""

    margin: float = 0.02
    """Share of the time by which another target must be faster."""
    conviction: float = 0.08
    """Shares of the time that it must have promised to save in the last questions, added up: a large gain is believed
    at once, a small one when it has been seen several times."""
    wariness: float = 8.0
    """Times the conviction that a target must promise to be taken back after it was left, and as many times more when
    that happens again: where targets take turns at being a little faster, turns become long."""
    most: float = 64.0
    """What wariness comes to at most."""
    memory: float = 128.0
    """Questions in which the wariness falls by half."""
    dwell: int = 2
    """Questions for which a new target is kept, if it can hold the load. Questions come by work, so this is a span of
    work too."""


Kind = tuple[Layout, bool]
"""Of a target: its layout, and whether long requests are striped. From what length on changes with every load."""
CAUTIOUS = Caution()
RECKLESS = Caution(margin=0.0, conviction=0.0, most=1.0, dwell=0)
"""For free switches."""


class Conviction:
    """The gains that other targets have promised over the present one since it was chosen."""

    def __init__(self, caution: Caution) -> None:
        self._caution = caution
        self._now: Kind | None = None
        """What was present at the last question."""
        self._promised: dict[Kind, float] = {}
        """Gains of other targets over that one, added up since they have been gains."""
        self._kept = caution.dwell
        """Questions for which it has been the present one, after a change."""
        self._wariness: dict[Kind, float] = {}
        """Times the conviction that is asked of targets that were left, above 1."""

    def weigh(self, now: Target, gains: Mapping[Target, float]) -> None:
        """A question has been answered: `gains` are the shares of the time that targets would save over `now`. What
        they promise adds up; a loss takes away from it."""
        caution = self._caution
        fading = 0.5 ** (1 / caution.memory)
        self._wariness = {kind: w * fading for kind, w in self._wariness.items() if w * fading > 1}
        if _kind(now) != self._now:
            if self._now is not None:
                self._kept = 0
                wary = caution.wariness * self._wariness.get(self._now, 1.0)
                self._wariness[self._now] = min(caution.most, wary)
            self._now, self._promised = _kind(now), {}
        self._kept += 1
        promises = {_kind(target): gain for target, gain in gains.items()}
        self._promised = {
            kind: max(0.0, self._promised.get(kind, 0.0) + gain) for kind, gain in promises.items()
        }

    @property
    def dwells(self) -> bool:
        """The present target is too new to be left."""
        return self._kept <= self._caution.dwell

    def doubts(self, target: Target, gain: float) -> bool:
        """Whether the last gain is too small, or has not been promised often enough."""
        kind = _kind(target)
        needed = self._caution.conviction * self._wariness.get(kind, 1.0)
        return gain <= self._caution.margin or self._promised[kind] < needed


def _kind(target: Target) -> Kind:
    return target.layout, target.striped_from is not None
