"""Numbers as options take them."""

from __future__ import annotations

from math import isfinite
from typing import Any

import click


class Whole(click.IntRange):
    """A whole number of a range, called that in messages and help."""

    name = "integer"


class Count(Whole):
    """A number of things that could be: no machine has more of them."""

    most = 100_000_000

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        number = int(super().convert(value, param, ctx))
        if number > self.most:
            self.fail(f"{value} is more than {self.most:,}.", param, ctx)
        return number


class Finite(click.FloatRange):
    """A number of a range that is one: comparisons alone let nan pass, and infinity."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


POSITIVE = Finite(min=0, min_open=True)
FROM_ZERO = Finite(min=0)
SHARE = Finite(min=0, max=1, min_open=True)
