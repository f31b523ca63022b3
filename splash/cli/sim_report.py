"""`--report FILE.html`: the page about simulated runs, with plotly's script in it."""

from __future__ import annotations

from collections.abc import Sequence

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


def report_page(runs: Sequence[RunResult], *, title: str, note: str) -> str:
    """HTML about `runs`; ConfigError where nothing can draw it."""
    return page(runs, title=title, note=note, colors=LAYOUT_COLORS, script=plotly_script())
