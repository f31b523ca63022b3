"""Figures as people read them: bytes, durations, counts. Pure functions, no locale."""

from __future__ import annotations

from math import isfinite

_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def show_bytes(num_bytes: float) -> str:
    """Three figures at most, binary units: `512 B`, `3.1 MiB`, `128 GiB`."""
    if num_bytes < 0:
        return f"-{show_bytes(-num_bytes)}"
    value = float(num_bytes)
    for unit in _BYTE_UNITS:
        if value < 999.5 or unit == _BYTE_UNITS[-1]:
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" or value >= 99.95 else f"{value:.1f} {unit}"


def show_seconds(seconds: float | None) -> str:
    """A duration of about three figures: `85 µs`, `12.3 ms`, `1.25 s`, `4 min 05 s`; N/A if unknown."""
    if seconds is None or not isfinite(seconds):
        return "N/A"
    if seconds < 0:
        return f"-{show_seconds(-seconds)}"
    if seconds < 0.0009995:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 0.09995:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.0f} ms"
    if seconds < 99.95:
        return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 600 else f"{minutes / 60:.1f} h"


def show_clock(seconds: float) -> str:
    """A moment of the run: `12.41 s`, `2:03.4`, `1:02:03`."""
    if seconds < 99.995:
        return f"{seconds:.2f} s"
    if seconds < 3599.95:
        tenths = round(seconds * 10)
        return f"{tenths // 600}:{tenths % 600 / 10:04.1f}"
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def show_count(number: float) -> str:
    """Thousands apart: `1,234`; from a million on `1.23 M`."""
    if number < 999_999.5:
        return f"{number:,.0f}"
    return f"{number / 1e6:.2f} M" if number < 999.995e6 else f"{number / 1e9:.2f} G"


def show_rate(per_second: float) -> str:
    """Tokens per second, one decimal while there are few: `8.4`, `812`, `12,345`."""
    return f"{per_second:.1f}" if per_second < 99.95 else show_count(per_second)


def show_share(share: float) -> str:
    """A share of one as a percentage; 100 % only when nothing is left."""
    percent = int(min(max(share, 0.0), 1.0) * 100 + 1e-9)
    return f"{percent:3d} %"


def plural(number: int, noun: str, nouns: str = "") -> str:
    """`1 request`, `14 requests`; `nouns` where there is more to it than an s."""
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"


def clean(text: str, limit: int = 400) -> str:
    """One printable line: whatever a model name or a reason brings along can break no frame."""
    flat = " ".join(text[: 4 * limit].split())
    return (flat if flat.isprintable() else "".join(c for c in flat if c.isprintable()))[:limit]
