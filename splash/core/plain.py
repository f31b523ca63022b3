"""Dataclasses and named tuples from plain data, as JSON has it: every field is of its type, every number finite."""

from __future__ import annotations

import builtins
import sys
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from splash.core.errors import KINDS

Made = TypeVar("Made")

MAX_SHOWN = 80
"""Characters of a wrong value in a message."""


def made(kind: type[Made], given: object, what: str) -> Made:
    """A value of `kind`, nested ones included; what has a default may be absent.

    ValueError, with `what` first, names fields that are missing, unknown or not what their type says.
    """
    if not isinstance(given, Mapping):
        raise ValueError(_complaint(what, given, kind))
    named: Any = kind
    hints, needed = _schema(named)
    if odd := sorted((needed - set(given)) | (set(given) - set(hints))):
        raise ValueError(f"{what}: missing or unknown fields: {', '.join(odd)}")
    return kind(**{name: _value(hints[name], value, f"{what}: {name}") for name, value in given.items()})


@cache
def _schema(kind: Any) -> tuple[dict[str, Any], set[str]]:
    """The types of its fields, and the names of those without a default."""
    hints = get_type_hints(kind)
    if is_dataclass(kind):
        return hints, {field.name for field in fields(kind) if field.default is MISSING}
    return hints, set(hints) - set(kind._field_defaults)


def _value(hint: Any, value: object, what: str) -> object:
    """`value` as a field has it."""
    if _is_record(hint):
        return made(hint, value, what)
    if not _fits(value, hint):
        raise ValueError(_complaint(what, value, hint))
    return _converted(value, hint)


def _converted(value: Any, hint: Any) -> object:
    """What fits a type, as that type: at all depths numbers for a float are floats, lists for a tuple are tuples."""
    inner = get_args(hint)
    match get_origin(hint):
        case None:
            return float(value) if hint is float else value
        case types.UnionType:
            return _converted(value, next(each for each in inner if _fits(value, each)))
        case builtins.list:
            return [_converted(item, inner[0]) for item in value]
        case builtins.tuple:
            return tuple(map(_converted, value, _items(inner, len(value))))
        case _:
            return {name: _converted(item, inner[1]) for name, item in value.items()}


def _is_record(hint: Any) -> bool:
    return is_dataclass(hint) or hasattr(hint, "_field_defaults")


def _fits(value: object, hint: Any) -> bool:
    """Whether plain data is what a field's type says; any number that is finite will do for a float."""
    inner = get_args(hint)
    match get_origin(hint):
        case None:
            return hint is Any or (_is_finite(value) if hint is float else type(value) is hint)
        case types.UnionType:
            return any(_fits(value, each) for each in inner)
        case builtins.list:
            return isinstance(value, list) and all(_fits(item, inner[0]) for item in value)
        case builtins.tuple:
            if not isinstance(value, list):
                return False
            items = _items(inner, len(value))
            return len(items) == len(value) and all(map(_fits, value, items))
        case _:
            return isinstance(value, dict) and all(_fits(item, inner[1]) for item in value.values())


def _items(inner: tuple[Any, ...], length: int) -> tuple[Any, ...]:
    """The types of a tuple's items, of one that may have any length as many as there are."""
    return inner[:1] * length if inner[-1] is ... else inner


def _is_finite(value: object) -> bool:
    """Whether it is a number that a float can hold; false for NaN."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max  # type: ignore[arg-type]


def _complaint(what: str, value: object, hint: Any) -> str:
    shown = repr(value)
    shown = shown if len(shown) <= MAX_SHOWN else f"{shown[:MAX_SHOWN]}…"
    return f"{what} is {shown}; it must be {_said(hint)}"


def _said_each(hints: tuple[Any, ...]) -> str:
    return f"{KINDS[list]} of {', '.join(map(_said, hints))}"


def _said(hint: Any) -> str:
    if isinstance(hint, types.UnionType):
        return " or ".join(map(_said, get_args(hint)))
    if get_origin(hint) is tuple:
        inner = get_args(hint)
        return f"{KINDS[list]}, each {_said(inner[0])}" if inner[-1] is ... else _said_each(inner)
    if inner := get_args(hint):
        return f"{KINDS[get_origin(hint)]}, each {_said(inner[-1])}"
    if hint is float:
        return "a finite number"
    return KINDS[dict] if _is_record(hint) else KINDS[hint]
