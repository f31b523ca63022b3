"""Profiles as TOML files: found by name or path, read, and checked key by key."""

import difflib
import sys
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

import splash
from splash.hw.profile import HardwareProfile, ProfileError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Section = TypeVar("Section")


def load_profile(name: str | Path, *, user_folder: Path | None = None) -> HardwareProfile:
    """The profile at a path, or of that name in the user's folder or among those that splash ships.

    A path ends in `.toml` or has a separator. The user's profile wins over a shipped one of the same name.
    """
    if isinstance(name, Path) or name.endswith(".toml") or "/" in name:
        return read_profile(Path(name))
    known = known_profiles(user_folder=user_folder)
    if name not in known:
        raise ProfileError(
            f"unknown hardware profile '{name}'{_closest(name, known)}; "
            f"known: {', '.join(sorted(known))}; a path to a TOML file works too"
        )
    return read_profile(known[name])


def known_profiles(*, user_folder: Path | None = None) -> dict[str, Path]:
    """Name to file, of all profiles that can be loaded by name."""
    folders = [shipped_folder()] + ([user_folder] if user_folder is not None else [])
    return {file.stem: file for folder in folders for file in sorted(folder.glob("*.toml"))}


def shipped_folder() -> Path:
    """The profiles in the installed package, or in the source tree that splash is imported from."""
    package = Path(splash.__file__).parent
    installed = package / "_hwprofiles"
    return installed if installed.is_dir() else package.parent / "hwprofiles"


def read_profile(file: Path) -> HardwareProfile:
    """The profile in a TOML file; raises ProfileError with the file and the key of what is wrong."""
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ProfileError(f"cannot read the hardware profile {file}: {error.strerror}") from None
    except ValueError as error:
        raise ProfileError(f"{file} is not valid TOML: {error}") from None
    return profile_from_table(table, name=file.stem, where=str(file))


def profile_from_table(table: Mapping[str, Any], *, name: str, where: str) -> HardwareProfile:
    """A profile from a parsed table; `where` names its origin in errors."""
    _check_keys(table, known=HardwareProfile.keys(), where=where)
    return _section(HardwareProfile, {"name": name, **table}, where=where, key="")


def _section(kind: type[Section], table: object, *, where: str, key: str) -> Section:
    """One dataclass of the schema from its table, recursively."""
    if not isinstance(table, Mapping):
        raise ProfileError(f"{where}: {key} must be a table, not {table!r}")
    types: dict[str, Any] = {field.name: field.type for field in fields(kind)}  # type: ignore[arg-type]
    _check_keys(table, known=types, where=f"{where}: {key}" if key else where)
    values = {
        name: _value(types[name], table[name], where=where, key=f"{key}.{name}".lstrip(".")) for name in types
    }
    try:
        return kind(**values)
    except ValueError as error:
        raise ProfileError(f"{where}: {key}: {error}") from None


def _value(kind: Any, value: object, *, where: str, key: str) -> object:
    if is_dataclass(kind):
        return _section(kind, value, where=where, key=key)  # type: ignore[arg-type]
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind):
        raise ProfileError(f"{where}: {key} must be a {kind.__name__}, not {value!r}")
    return value


def _check_keys(table: Mapping[str, Any], *, known: Iterable[str], where: str) -> None:
    known = tuple(known)
    for key in table:
        if key not in known:
            raise ProfileError(
                f"{where}: unknown key '{key}'{_closest(key, known)}; known: {', '.join(known)}"
            )
    for key in known:
        if key not in table:
            raise ProfileError(f"{where}: missing '{key}'")


def _closest(name: str, known: Iterable[str]) -> str:
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f", did you mean '{matches[0]}'?" if matches else ""
