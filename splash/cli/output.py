"""Where the files of a command go: JSON, reports, traces, profiles."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from itertools import combinations
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

import click

from splash.core import env
from splash.core.errors import ConfigError, file_errors

if TYPE_CHECKING:
    from rich.console import Console

STDOUT = "-"
"""The name that means standard output; nothing else goes there then."""
WIDTH = 100
"""Columns of tables where there is no terminal, and $COLUMNS does not say."""


def output_console(outputs: dict[str, str | Path | None]) -> Console:
    """Where people are told what happens: standard output, or the other one if a file takes that.

    `outputs`: what each option writes, None if it was not given. UsageError where two of them would write to one place.
    """
    from rich.console import Console

    given = {option: str(name) for option, name in outputs.items() if name is not None}
    for (one, name), (other, same) in combinations(given.items(), 2):
        if name == STDOUT == same:
            raise click.UsageError(f"{one} and {other} cannot both go to standard output (-)")
        if name != STDOUT != same and _is_one_file(Path(name), Path(same)):
            raise click.UsageError(f"{one} and {other} cannot both write {name}")
    is_stdout_taken = STDOUT in given.values()
    console = Console(stderr=is_stdout_taken, highlight=False)
    if console.is_terminal:
        return console
    return Console(stderr=is_stdout_taken, highlight=False, width=env.columns() or WIDTH)


def tell(text: str) -> None:
    """A line on standard error: of what happens, while standard output is for what comes out."""
    from rich.console import Console

    Console(stderr=True, highlight=False).print(text, soft_wrap=True, markup=False)


def _is_one_file(one: Path, other: Path) -> bool:
    """A device takes any number of outputs."""
    return one.resolve() == other.resolve() and (one.is_file() or not one.exists())


class Target:
    """Standard output, a device, or a file that appears whole or not at all.

    Entering it proves that it can be written, before anything runs: an hour's figures shall not be lost to a typing
    error. ConfigError, which names the option, otherwise, and where a write fails.
    """

    def __init__(self, name: str | Path, option: str) -> None:
        self._path = Path(name)
        self._option = option
        self._is_stdout = str(name) == STDOUT
        self._part: Path | None = None
        self._stream: TextIO | None = None
        self._draft: str | None = None

    def __enter__(self) -> Target:
        with self._errors_named():
            if self._is_stdout:
                self._stream = sys.stdout
            elif self._path.is_file() or not self._path.exists():
                self._part = self._path.with_name(f"{self._path.name}.{os.getpid()}.part")
                self._part.open("w").close()
            else:
                self._stream = self._path.open("w", encoding="utf-8")
        return self

    def write(self, text: str) -> None:
        """A file may be written again; it is replaced then."""
        self._draft = None
        with self._errors_named():
            if self._stream is not None:
                self._stream.write(text)
                self._stream.flush()
                return
            assert self._part is not None
            self._part.write_text(text, encoding="utf-8")
            self._part.replace(self._path)

    def draft(self, text: str) -> None:
        """What is written if no `write` follows, however the run ends: now to a file, in the end to a stream."""
        if self._stream is None:
            self.write(text)
        else:
            self._draft = text

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._draft is not None:
                self.write(self._draft)
        finally:
            if self._stream is not None and not self._is_stdout:
                with contextlib.suppress(OSError):  # what could not be flushed has been said
                    self._stream.close()
            if self._part is not None:
                self._part.unlink(missing_ok=True)

    def _errors_named(self) -> contextlib.AbstractContextManager[None]:
        where = "standard output" if self._is_stdout else self._path
        return file_errors(f"write {where}", ConfigError, self._option)


def target_of(name: str | Path | None, option: str) -> contextlib.AbstractContextManager[Target | None]:
    """The target of an option; nothing where it was not given."""
    return contextlib.nullcontext() if name is None else Target(name, option)


def json_text(data: dict[str, Any]) -> str:
    return json.dumps(data, indent=1) + "\n"
