"""The only place that reads environment variables."""

from __future__ import annotations

import os
from pathlib import Path


def config_dir() -> Path:
    """Where a user's own hardware profiles lie: $SPLASH_CONFIG_DIR, or splash/ under the XDG folder."""
    own = os.environ.get("SPLASH_CONFIG_DIR")
    if own:
        return Path(own)
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "splash"


def debug() -> bool:
    """$SPLASH_DEBUG=1: check collectives and page conservation at every step, show tracebacks."""
    return os.environ.get("SPLASH_DEBUG", "") not in ("", "0")


def columns() -> int | None:
    """$COLUMNS: how wide output is wanted; None where that is no number."""
    wanted = os.environ.get("COLUMNS", "")
    return int(wanted) if wanted.isdecimal() and int(wanted) else None


def with_variables(**variables: str) -> dict[str, str]:
    """This process's environment and `variables`, for a child process."""
    return {**os.environ, **variables}
