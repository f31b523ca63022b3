"""Runs the checks on a port's ranks and gathers what came out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pkgutil import resolve_name
from time import monotonic
from typing import Any, Literal

from splash.core.errors import NotSupported, RankFailure, SplashError
from splash.hal.protocol import Backend, RankContext, RankJob

Check = Callable[[RankContext], None]
"""Runs on every rank; raises AssertionError where the port is wrong, NotSupported where its caps say so."""

MODULES = ("collectives", "memory", "attention", "selection")
TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check on one number of ranks. `detail` says what went wrong, or which capability is lacking."""

    name: str
    ranks: int
    outcome: Literal["passed", "failed", "not supported"]
    seconds: float
    detail: str = ""


def check_names() -> list[str]:
    """Every check as "module:function", in the order in which they run."""
    names = []
    for module in MODULES:
        checks = resolve_name(f"{__package__}.{module}:CHECKS")
        names += [f"{module}:{check.__name__}" for check in checks]
    return names


def run(backend: Backend, ranks: int, *, names: Iterable[str] | None = None) -> list[CheckResult]:
    """All checks (or `names`) on `ranks` ranks of `backend`. One rank job serves them until one fails."""
    return list(iterate(backend, ranks, names=names))


def iterate(backend: Backend, ranks: int, *, names: Iterable[str] | None = None) -> Iterator[CheckResult]:
    """As `run`, one result at a time."""
    job: RankJob | None = None
    try:
        for name in check_names() if names is None else names:
            started = monotonic()
            if job is None:
                job = backend.launch(ranks, f"{__name__}:serve", None)
            try:
                job.send(name)
                refused = [answer for answer in job.receive(TIMEOUT_S) if answer is not None]
            except SplashError as error:
                yield CheckResult(name, ranks, "failed", monotonic() - started, str(error))
                job.close()
                job = None
            else:
                outcome: Literal["passed", "not supported"] = "not supported" if refused else "passed"
                yield CheckResult(name, ranks, outcome, monotonic() - started, "; ".join(refused[:1]))
    finally:
        if job is not None:
            job.close()


def serve(context: RankContext, args: Any) -> None:
    """The entry of a rank: runs the checks it is told, and answers None or what is not supported."""
    while True:
        check: Check = resolve_name(f"{__package__}.{context.receive()}")
        try:
            check(context)
        except NotSupported as error:
            context.send(str(error))
        else:
            context.send(None)


def require(holds: bool, *what: object) -> None:
    """An assertion that survives `python -O`."""
    if not holds:
        raise AssertionError(" ".join(str(part) for part in what))


__all__ = ["Check", "CheckResult", "RankFailure", "check_names", "iterate", "require", "run", "serve"]
