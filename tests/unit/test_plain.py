"""Plain data becomes dataclasses whose every field is of its type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from splash.core.plain import made


@dataclass(frozen=True)
class _Deep:
    maybe: float | None = None
    many: list[float] | None = None
    pairs: tuple[tuple[int, float], ...] = ()
    named: dict[str, tuple[float, ...]] | None = None
    mixed: tuple[str, float] = ("", 0.0)
    either: int | float = 0


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ({"maybe": 1}, 1.0),
        ({"maybe": None}, None),
        ({"many": [1, 2.5]}, [1.0, 2.5]),
        ({"pairs": [[1, 2], [3, 4]]}, ((1, 2.0), (3, 4.0))),
        ({"named": {"a": [1]}}, {"a": (1.0,)}),
        ({"mixed": ["a", 1]}, ("a", 1.0)),
        ({"either": 1}, 1),
    ],
)
def test_values_are_of_their_type_at_all_depths(given: dict[str, Any], value: object) -> None:
    """Red when a whole number stays one, or a list a list, where it is not the whole field."""
    (name,) = given
    found = getattr(made(_Deep, given, "it"), name)
    assert repr(found) == repr(value)


@pytest.mark.parametrize("mixed", [["a", "b"], [1, 1], ["a"], ["a", 1, 1], []])
def test_each_item_of_a_tuple_has_a_type_of_its_own(mixed: list[Any]) -> None:
    """Red when all items are held against the first one's type, or their number is not."""
    with pytest.raises(ValueError, match=r"it: mixed is .*; it must be a list of text, a finite number"):
        made(_Deep, {"mixed": mixed}, "it")
