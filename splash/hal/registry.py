"""The ports: found by entry point, and in the `backends` folder beside a source tree. Nothing is imported by name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from importlib import import_module, metadata
from pathlib import Path

from splash.core.errors import ConfigError, PortError
from splash.hal.caps import DeviceInfo
from splash.hal.protocol import Backend, BackendSpec

GROUP = "splash.backends"


@dataclass(frozen=True, slots=True)
class PortStatus:
    """A port as `splash doctor` shows it: its devices, or the problem that keeps it from being used."""

    name: str
    aliases: tuple[str, ...]
    summary: str
    devices: tuple[DeviceInfo, ...]
    problem: str = ""


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A port that is said to exist. `load` imports its module and may fail."""

    name: str
    load: Callable[[], BackendSpec]


def find(name: str) -> BackendSpec:
    """The port called `name`, or one of whose aliases is. ConfigError lists those there are."""
    wanted = _plain(name)
    specs, broken = _specs()
    for spec in specs:
        if wanted in (_plain(spec.name), *map(_plain, spec.aliases)):
            return spec
    if wanted in broken:
        raise PortError(f"the port '{name}' cannot be imported: {broken[wanted]}")
    raise ConfigError(_unknown(name, specs))


def load_backend(name: str) -> Backend:
    """The port called `name`, ready to launch ranks. PortError if it lacks something."""
    return find(name).loader()


def ports() -> list[PortStatus]:
    """Every port with what its probe found, by name. A port that fails is listed with the reason."""
    specs, broken = _specs()
    found = [_status(spec) for spec in specs]
    found += [PortStatus(name, (), "", (), f"cannot be imported: {why}") for name, why in broken.items()]
    return sorted(found, key=lambda status: status.name)


def _status(spec: BackendSpec) -> PortStatus:
    devices: tuple[DeviceInfo, ...] = ()
    problem = ""
    try:
        devices = tuple(spec.probe())
        problem = "" if devices else "no device found"
    except Exception as error:  # whatever a driver's library raises must not hide the other ports
        problem = str(error) if isinstance(error, PortError) else f"{type(error).__name__}: {error}"
    return PortStatus(spec.name, spec.aliases, spec.summary, devices, problem)


def _specs() -> tuple[list[BackendSpec], dict[str, str]]:
    """All ports that can be imported, and why the others cannot."""
    specs: dict[str, BackendSpec] = {}
    broken: dict[str, str] = {}
    for candidate in [*_entry_points(), *_source_tree()]:
        if candidate.name in specs:
            continue
        try:
            specs[candidate.name] = candidate.load()
            broken.pop(candidate.name, None)
        except Exception as error:  # a broken port must not hide the others
            broken.setdefault(candidate.name, f"{type(error).__name__}: {error}")
    return list(specs.values()), broken


def _entry_points() -> Iterator[_Candidate]:
    for entry in metadata.entry_points(group=GROUP):
        yield _Candidate(entry.name, entry.load)


def _source_tree() -> Iterator[_Candidate]:
    """Ports in `backends/*/splash_*` beside this package: there without an installation, or newer than it."""
    folder = Path(__file__).resolve().parents[2] / "backends"
    for init in sorted(folder.glob("*/splash_*/__init__.py")):
        yield _Candidate(init.parent.parent.name, partial(_import, init.parent))


def _import(package: Path) -> BackendSpec:
    if str(package.parent) not in sys.path:
        sys.path.append(str(package.parent))
    return import_module(package.name).SPEC


def _unknown(name: str, specs: list[BackendSpec]) -> str:
    names = {_plain(alias): spec.name for spec in specs for alias in (spec.name, *spec.aliases)}
    close = get_close_matches(_plain(name), names, n=1)
    listed = ", ".join(f"{s.name} ({', '.join(s.aliases)})" if s.aliases else s.name for s in specs) or "none"
    hint = f" (did you mean '{close[0]}'?)" if close else ""
    return f"unknown port '{name}'{hint}; known: {listed}"


def _plain(name: str) -> str:
    return name.casefold().replace("-", "_")
