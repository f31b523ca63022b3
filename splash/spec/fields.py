"""A JSON object read key by key: typed values, errors that name the key and say what to write."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from splash.core.errors import ConfigError


class Fields:
    """A view of one JSON object; `where` opens every error, e.g. `config.json` or `config.json, rope_scaling`.

    A key may have older or newer names, tried in order; null counts as absent. ConfigError when a key is absent
    that has no default, or when its value is of another type.
    """

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = values
        self.where = where

    def raw(self, *names: str) -> Any:
        """The first value that is neither absent nor null, as it is; None if there is none."""
        return next((self._values[name] for name in names if self._values.get(name) is not None), None)

    def integer(self, *names: str, default: int | None = None, minimum: int = 1) -> int:
        """A whole number of at least `minimum`."""
        value = self.optional_integer(*names, minimum=minimum)
        if value is None:
            value = default
        if value is None:
            raise self.missing(*names)
        return value

    def optional_integer(self, *names: str, minimum: int = 1) -> int | None:
        value = self.raw(*names)
        if value is None:
            return None
        whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        if isinstance(value, bool) or not whole or value < minimum:
            raise self.wrong(*names, expected=f"a whole number of at least {minimum}")
        return int(value)

    def number(self, *names: str, default: float | None = None) -> float:
        """A finite number."""
        value = self.optional_number(*names)
        if value is None:
            value = default
        if value is None:
            raise self.missing(*names)
        return value

    def optional_number(self, *names: str) -> float | None:
        value = self.raw(*names)
        if value is None:
            return None
        finite = isinstance(value, (int, float)) and abs(value) < float("inf")
        if isinstance(value, bool) or not finite:
            raise self.wrong(*names, expected="a number")
        return float(value)

    def flag(self, *names: str, default: bool) -> bool:
        value = self.raw(*names)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(*names, expected="true or false")
        return value

    def text(self, *names: str, default: str) -> str:
        value = self.raw(*names)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.wrong(*names, expected="a string")
        return value

    def items(self, *names: str) -> tuple[Any, ...]:
        """A list; empty when absent."""
        value = self.raw(*names)
        if value is None:
            return ()
        if not isinstance(value, (list, tuple)):
            raise self.wrong(*names, expected="a list")
        return tuple(value)

    def section(self, *names: str) -> Fields | None:
        """A nested object; None when absent or empty."""
        value = self.raw(*names)
        if value is None or value == {}:
            return None
        if not isinstance(value, Mapping):
            raise self.wrong(*names, expected="an object")
        return Fields(value, f"{self.where}, {self._name(*names)}")

    def sections(self) -> dict[str, Fields]:
        """Every value, if all are objects; otherwise none."""
        if not all(isinstance(value, Mapping) for value in self._values.values()):
            return {}
        return {name: Fields(value, f"{self.where}, {name}") for name, value in self._values.items()}

    def merged(self, over: Fields) -> Fields:
        """These keys under those of `over`; errors speak of `over`."""
        return Fields(
            {**self._values, **{k: v for k, v in over._values.items() if v is not None}}, over.where
        )

    def missing(self, *names: str) -> ConfigError:
        return ConfigError(f"{self.where} has no {' or '.join(names)}; add it, or get the file again")

    def wrong(self, *names: str, expected: str) -> ConfigError:
        """The error for a value that is not `expected`; JSON within a string is recognised."""
        value, name = self.raw(*names), self._name(*names)
        text = value if isinstance(value, str) and expected != "a string" else None
        advice = f"; write {name} without the quotes around its value" if text and _is_json(text) else ""
        kind = "" if text is None else "the string "
        shown = repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:57]}..."
        return ConfigError(f"{self.where}: {name} is {kind}{shown}, it must be {expected}{advice}")

    def _name(self, *names: str) -> str:
        return next((name for name in names if self._values.get(name) is not None), names[0])


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
