"""The five colours stay apart for every eye, on the ground of a dark terminal."""

from itertools import combinations

import pytest
from rich.color import Color

from splash.layout.layouts import LAYOUTS
from splash.tui import palette

# Machado, Oliveira and Fernandes 2009, severity 1.0, on linear RGB.
EYES = {
    "full": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protan": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deutan": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritan": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}


def _lab(color: str, eye: str) -> tuple[float, float, float]:
    """CIE L*a*b* (D65) of a colour as that eye sees it."""
    parts = [x / 255 for x in Color.parse(color).get_truecolor()]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    red, green, blue = (
        min(1.0, max(0.0, sum(weight * x for weight, x in zip(row, linear, strict=True))))
        for row in EYES[eye]
    )
    x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.95047
    y = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.08883
    fx, fy, fz = (v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


@pytest.mark.parametrize("eye", EYES)
def test_any_two_layouts_differ(eye: str) -> None:
    """Red when a colour is changed to one that some eyes take for another (a difference of 2 is just seen)."""
    for one, other in combinations(palette.LAYOUT_COLORS, 2):
        a, b = _lab(palette.LAYOUT_COLORS[one], eye), _lab(palette.LAYOUT_COLORS[other], eye)
        assert sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) ** 0.5 > 25, (one, other)


@pytest.mark.parametrize("eye", EYES)
def test_every_layout_stands_out_from_free_pages(eye: str) -> None:
    """Red when a colour drowns in the ground."""
    for name, color in palette.LAYOUT_COLORS.items():
        assert _lab(color, eye)[0] - _lab(palette.USE_COLORS["free"], eye)[0] > 20, name


def test_every_layout_has_a_colour_and_a_letter_of_its_own() -> None:
    """Red when a layout is added without them."""
    assert (
        set(palette.LAYOUT_COLORS) == set(palette.LAYOUT_LETTERS) == set(LAYOUTS) == set(palette.LAYOUT_ORDER)
    )
    letters = [*palette.LAYOUT_LETTERS.values(), *palette.USE_LETTERS.values()]
    assert len(set(letters)) == len(letters)
