"""A run as JSON lines: a header, every event, and what it takes to play the same steps again.

Each line is an object whose `kind` says what it is:

    header   what ran: version, model, configuration, seed
    event    one event of `core.events`
    submit   a request as it reached the scheduler: tokens, parameters, arrival, before which step
    abort    a request's abort, before which step
    target   a target set by a user, before which step
    step     a digest of the StepPlan, its StepResult, and the two times at which the scheduler was called

Submits, aborts and targets lie in the order in which the scheduler was told of them; with the times and the
results they determine every plan, so a replay can be checked against the digests.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TextIO

from splash.core.errors import SplashError, file_errors
from splash.core.events import Event, from_json, to_json
from splash.core.plain import made
from splash.core.request import Request
from splash.sched.step import StepPlan, StepResult

VERSION = 4
PIPE = Path("-")
"""Standard output to a writer, standard input to a reader."""


class TraceError(SplashError):
    """A trace cannot be read or written; the message names the file and the line."""


@dataclass(frozen=True, slots=True)
class Header:
    """What was run: the model's folder, the configuration as plain data, and splash's version."""

    splash: str
    model: str
    config: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Submitted:
    step: int
    request: Request
    forced: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Aborted:
    step: int
    request: int


@dataclass(frozen=True, slots=True)
class Retargeted:
    step: int
    layout: str
    reason: str


@dataclass(frozen=True, slots=True)
class Stepped:
    """`planned_s` and `collected_s`: the engine's clock at `schedule` and at `update`."""

    digest: str
    planned_s: float
    collected_s: float
    result: StepResult


Record = Header | Event | Submitted | Aborted | Retargeted | Stepped


def plan_digest(plan: StepPlan) -> str:
    """16 hexadecimal digits that are equal for equal plans, on every machine and in every process."""
    return hashlib.sha256(repr(_canonical(plan)).encode()).hexdigest()[:16]


def _canonical(value: Any) -> Any:
    """Nested tuples of numbers and strings; sets are sorted, enumerations become their values."""
    if isinstance(value, tuple):
        if all(type(item) is int for item in value):
            return tuple(value)
        return tuple(_canonical(item) for item in value)
    if isinstance(value, frozenset):
        return tuple(sorted(value))
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        return tuple(_canonical(getattr(value, field.name)) for field in fields(value))
    return value


class TraceWriter:
    """Writes a trace line by line; `close` ends it. Every line is complete on its own.

    Where nobody reads any more `unread` is called, once, and nothing is written after that; BrokenPipeError without it.
    """

    def __init__(
        self, file: Path, header: Header, *, unread: Callable[[BrokenPipeError], None] | None = None
    ) -> None:
        self._file = file
        self._unread = unread
        self._is_broken = False
        with self._errors_named():
            self._out: TextIO = sys.stdout if file == PIPE else file.open("w", encoding="utf-8")
        self._write("header", {"version": VERSION, **asdict(header)})

    def event(self, event: Event) -> None:
        self._write("event", to_json(event))

    def submit(self, step: int, request: Request, forced: tuple[int, ...] = ()) -> None:
        self._write("submit", {"step": step, **asdict(request), "forced": forced})

    def abort(self, step: int, request: int) -> None:
        self._write("abort", {"step": step, "request": request})

    def target(self, step: int, layout: str, reason: str) -> None:
        self._write("target", {"step": step, "layout": layout, "reason": reason})

    def step(self, plan: StepPlan, result: StepResult, *, planned_s: float, collected_s: float) -> None:
        times = {"planned_s": planned_s, "collected_s": collected_s}
        self._write("step", {"digest": plan_digest(plan), **times, "result": result._asdict()})

    def close(self) -> None:
        with self._errors_named():
            if self._file == PIPE:
                self._out.flush()
            else:
                self._out.close()

    def _write(self, kind: str, data: Mapping[str, Any]) -> None:
        if self._is_broken:
            return
        try:
            with self._errors_named():
                self._out.write(json.dumps({"kind": kind, **data}, separators=(",", ":")) + "\n")
        except BrokenPipeError as error:
            if self._unread is None:
                raise
            self._is_broken = True
            self._unread(error)

    def _errors_named(self) -> AbstractContextManager[None]:
        return file_errors(f"write the trace {self._file}", TraceError, "--trace")


def read_trace(file: Path) -> Iterator[Record]:
    """The records of a trace, the header first; TraceError at the first line that is not one."""
    with file_errors(f"read the trace {file}", TraceError):
        lines = sys.stdin if file == PIPE else file.open(encoding="utf-8")
    with lines:
        number = 0
        for number, line in enumerate(_decoded(lines, file), start=1):
            yield _record(line, file, number)
        if number == 0:
            raise TraceError(f"{file} is empty; a trace is what `splash run --trace FILE` writes")


def _decoded(lines: TextIO, file: Path) -> Iterator[str]:
    try:
        yield from lines
    except UnicodeDecodeError:
        raise TraceError(
            f"{file} is not UTF-8 text; a trace is what `splash run --trace FILE` writes"
        ) from None


def _record(line: str, file: Path, number: int) -> Record:
    where = f"{file}:{number}"
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        if number == 1:
            raise TraceError(
                f"{file} is no trace; a trace is what `splash run --trace FILE` writes"
            ) from None
        raise TraceError(f"{where}: not JSON ({error}); was the run cut off while writing?") from None
    kind = data.pop("kind", None) if isinstance(data, dict) else None
    if (number == 1) != (kind == "header"):
        raise TraceError(
            f"{where}: expected {'a header' if number == 1 else 'a record'}, found kind {kind!r}"
        )
    if not isinstance(kind, str) or kind not in _PARSERS:
        raise TraceError(f"{where}: unknown kind {kind!r}; known: {', '.join(_PARSERS)}")
    try:
        return _PARSERS[kind](data)
    except (ValueError, SplashError) as error:
        raise TraceError(f"{where}: {error}") from None


def _header(data: dict[str, Any]) -> Header:
    version = data.pop("version", None)
    if version != VERSION:
        raise ValueError(f"the trace has version {version}, this splash reads {VERSION}")
    return made(Header, data, "header")


def _submit(data: dict[str, Any]) -> Submitted:
    """A request's fields stand beside those of its submit."""
    given: dict[str, Any] = {name: data.pop(name) for name in ("step", "forced") if name in data}
    return made(Submitted, given | {"request": data}, "submit")


_PARSERS: dict[str, Callable[[dict[str, Any]], Record]] = {
    "header": _header,
    "event": from_json,
    "submit": _submit,
    "abort": lambda data: made(Aborted, data, "abort"),
    "target": lambda data: made(Retargeted, data, "target"),
    "step": lambda data: made(Stepped, data, "step"),
}
