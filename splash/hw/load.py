"""Profiles as TOML files: found by name or path, read, and checked key by key."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin

import splash
from splash.core.errors import KINDS, closest, file_errors
from splash.hw.profile import HardwareProfile, ProfileError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Section = TypeVar("Section")


def load_profile(name: str | Path, *, user_folder: Path | None = None) -> HardwareProfile:
    """The profile at a path, or of that name or alias in the user's folder or among those that splash ships.

    A path ends in `.toml` or has a separator. A name wins over an alias, the user's profile over a shipped one.
    """
    if isinstance(name, Path) or name.endswith(".toml") or "/" in name:
        return read_profile(Path(name))
    files = known_profiles(user_folder=user_folder)
    known = files if name in files else profile_aliases(user_folder=user_folder) | files
    found = next((known[each] for each in (name, name.casefold()) if each in known), None)
    if found is None:
        own = f"; yours are looked for in {user_folder}" if user_folder is not None else ""
        raise ProfileError(
            f"unknown hardware profile '{name}'{closest(name.casefold(), known)}; "
            f"known: {', '.join(sorted(known))}{own}; a path to a TOML file works too (--hw)"
        )
    return read_profile(found)


def known_profiles(*, user_folder: Path | None = None) -> dict[str, Path]:
    """Name to file, of all profiles that can be loaded by name."""
    folders = [shipped_folder()] + ([user_folder] if user_folder is not None else [])
    return {file.stem: file for folder in folders for file in sorted(folder.glob("*.toml"))}


def profile_aliases(*, user_folder: Path | None = None) -> dict[str, Path]:
    """Alias to file, as the profiles that can be loaded by name declare them; reads them all."""
    files = known_profiles(user_folder=user_folder).values()
    return {alias: file for file in files for alias in read_profile(file).aliases}


def shipped_folder() -> Path:
    """The profiles in the installed package, or in the source tree that splash is imported from."""
    package = Path(splash.__file__).parent
    installed = package / "_hwprofiles"
    return installed if installed.is_dir() else package.parent / "hwprofiles"


def read_profile(file: Path) -> HardwareProfile:
    """The profile in a TOML file; raises ProfileError with the file, the key of what is wrong, and the option that
    names another."""
    with file_errors(f"read the hardware profile {file}", ProfileError, "--hw"):
        data = file.read_bytes()
    try:
        table = tomllib.loads(data.decode("utf-8"))
        return profile_from_table(table, name=file.stem, where=str(file))
    except ValueError as error:
        raise ProfileError(f"{file} is not valid TOML: {error} (--hw)") from None
    except ProfileError as error:
        raise ProfileError(f"{error} (--hw)") from None


def profile_from_table(table: Mapping[str, Any], *, name: str, where: str) -> HardwareProfile:
    """A profile from a parsed table; `where` names its origin in errors."""
    if "name" in table:
        raise ProfileError(f"{where}: unknown key 'name': a profile's name is its file's")
    return _section(HardwareProfile, {"name": name, **table}, where=where, key="")


def _section(kind: type[Section], table: object, *, where: str, key: str) -> Section:
    """One dataclass of the schema from its table, recursively; what has a default may be absent."""
    table = _table(table, where=where, key=key)
    schema = fields(kind)  # type: ignore[arg-type]
    _check_keys(
        table,
        known=[field.name for field in schema],
        required=[field.name for field in schema if field.default is MISSING],
        where=f"{where}: {key}" if key else where,
    )
    types: dict[str, Any] = {field.name: field.type for field in schema}
    values = {
        name: _value(types[name], value, where=where, key=f"{key}.{name}".lstrip("."))
        for name, value in table.items()
    }
    try:
        return kind(**values)
    except ValueError as error:
        raise ProfileError(f"{where}: {key}: {error}") from None


def _value(kind: Any, value: object, *, where: str, key: str) -> object:
    """A value of a field's type: a section, a mapping of sections by number, strings, or one plain value."""
    if isinstance(kind, UnionType):
        (kind,) = (choice for choice in get_args(kind) if choice is not NoneType)
    if is_dataclass(kind):
        return _section(kind, value, where=where, key=key)  # type: ignore[arg-type]
    if get_origin(kind) is Mapping:
        return _by_number(get_args(kind)[1], value, where=where, key=key)
    if get_origin(kind) is tuple and isinstance(value, list):
        return tuple(_value(str, item, where=where, key=key) for item in value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, get_origin(kind) or kind):
        raise ProfileError(f"{where}: {key} must be {_article(kind)}, not {value!r}")
    return value


def _by_number(kind: type[Section], table: object, *, where: str, key: str) -> dict[int, Section]:
    """Sections by a positive number, in its order: TOML's keys are strings."""
    table = _table(table, where=where, key=key)
    for name in table:
        if not name.isdecimal() or int(name) == 0:
            raise ProfileError(f"{where}: {key}: '{name}' must be a positive whole number")
    return {
        int(name): _section(kind, table[name], where=where, key=f"{key}.{name}")
        for name in sorted(table, key=int)
    }


def _table(value: object, *, where: str, key: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ProfileError(f"{where}: {key} must be a table, not {value!r}")
    return value


def _article(kind: Any) -> str:
    return "a list of text" if get_origin(kind) is tuple else KINDS[kind]


def _check_keys(
    table: Mapping[str, Any], *, known: Sequence[str], required: Iterable[str], where: str
) -> None:
    for key in table:
        if key not in known:
            raise ProfileError(
                f"{where}: unknown key '{key}'{closest(key, known)}; known: {', '.join(known)}"
            )
    for key in required:
        if key not in table:
            raise ProfileError(f"{where}: missing '{key}'")
