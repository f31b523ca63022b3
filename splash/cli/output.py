"""Where a command's JSON goes."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from splash.core.errors import ConfigError


class JsonTarget:
    """Standard output, a device, or a file that appears whole or not at all.

    Entering it proves that it can be written, before anything runs: an hour's figures shall not be lost to a typing
    error. ConfigError otherwise.
    """

    def __init__(self, name: str) -> None:
        self._path = Path(name)
        self._is_stdout = name == "-"
        self._part: Path | None = None
        self._out: TextIO = sys.stdout

    def __enter__(self) -> JsonTarget:
        if self._is_stdout:
            return self
        is_plain = self._path.is_file() or not self._path.exists()
        self._part = self._path.with_name(f"{self._path.name}.{os.getpid()}.part") if is_plain else None
        try:
            self._out = (self._part or self._path).open("w", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot write {self._path}: {error.strerror} (--json)") from None
        return self

    def write(self, data: dict[str, Any]) -> None:
        json.dump(data, self._out, indent=1)
        self._out.write("\n")
        self._out.flush()
        if self._part is not None:
            self._part.replace(self._path)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._is_stdout:
            self._out.close()
        if self._part is not None:
            self._part.unlink(missing_ok=True)
