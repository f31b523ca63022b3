"""Names as options take them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from splash.core.errors import closest


class OneOf(click.Choice):
    """One of some names; another one is told as unknown names are elsewhere. `what` they name."""

    def __init__(self, what: str, names: Sequence[str]) -> None:
        super().__init__(names)
        self._what = what

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value not in self.choices:
            known = ", ".join(self.choices)
            self.fail(
                f"unknown {self._what} '{value}'{closest(value, self.choices)}; known: {known}", param, ctx
            )
        return super().convert(value, param, ctx)
