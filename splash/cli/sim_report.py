"""`--report FILE.html`: the page about simulated runs, with plotly's script in it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from splash.core.errors import ConfigError
from splash.sim.report import page
from splash.sim.result import RunResult
from splash.tui.palette import LAYOUT_COLORS


def plotly_script() -> str:
    """The JavaScript that draws; ConfigError names the extra that brings it. Asked before a long run, it saves one."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise ConfigError("--report draws with plotly: pip install plotly (the extra 'report')") from None
    return str(get_plotlyjs())


def write_report(file: Path, runs: Sequence[RunResult], *, title: str, note: str) -> None:
    """The page about `runs`, whole or not at all; ConfigError where it cannot be made or written."""
    text = page(runs, title=title, note=note, colors=LAYOUT_COLORS, script=plotly_script())
    part = file.with_name(f"{file.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(file)
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {error.strerror} (--report)") from None
    finally:
        part.unlink(missing_ok=True)
