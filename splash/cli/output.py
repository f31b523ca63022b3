"""Where a command's JSON goes."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from splash.core.errors import ConfigError


class JsonTarget:
    """Standard output, a device, or a file that appears whole or not at all.

    Entering it proves that it can be written, before anything runs: an hour's figures shall not be lost to a typing
    error. ConfigError otherwise, and where a write fails.
    """

    def __init__(self, name: str) -> None:
        self._path = Path(name)
        self._is_stdout = name == "-"
        self._part: Path | None = None
        self._stream: TextIO | None = None
        self._draft: dict[str, Any] | None = None

    def __enter__(self) -> JsonTarget:
        with self._errors_named():
            if self._is_stdout:
                self._stream = sys.stdout
            elif self._path.is_file() or not self._path.exists():
                self._part = self._path.with_name(f"{self._path.name}.{os.getpid()}.part")
                self._part.open("w").close()
            else:
                self._stream = self._path.open("w", encoding="utf-8")
        return self

    def write(self, data: dict[str, Any]) -> None:
        """A file may be written again; it is replaced then."""
        self._draft = None
        with self._errors_named():
            if self._stream is not None:
                _dump(data, self._stream)
                return
            assert self._part is not None
            with self._part.open("w", encoding="utf-8") as out:
                _dump(data, out)
            self._part.replace(self._path)

    def draft(self, data: dict[str, Any]) -> None:
        """What is written if no `write` follows, however the run ends: now to a file, in the end to a stream."""
        if self._stream is None:
            self.write(data)
        else:
            self._draft = data

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

    @contextlib.contextmanager
    def _errors_named(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:  # nobody reads on: no fault of this command
            raise
        except OSError as error:
            raise ConfigError(f"cannot write {self._path}: {error.strerror} (--json)") from None


def _dump(data: dict[str, Any], out: TextIO) -> None:
    json.dump(data, out, indent=1)
    out.write("\n")
    out.flush()
