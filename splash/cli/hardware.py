"""What `splash run --hw` names: a port with a device here, or hardware to be simulated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from splash.core.config import EngineConfig
from splash.core.errors import ConfigError, closest

if TYPE_CHECKING:
    from splash.hal.protocol import Backend
    from splash.hal.registry import PortStatus


NO_GPU_PORT = "there is no GPU port in this version yet"


@dataclass(frozen=True, slots=True)
class Here:
    """A port has a device on this machine."""

    port: str


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """No port has a device of that name on this machine."""

    name: str
    profile: str
    """The hardware profile to simulate: a name or a path."""
    problem: str
    """Of the port, if there is one; empty where there is none."""

    @property
    def absence(self) -> str:
        """`no NAME device here`, with the port's problem."""
        return f"no {self.name} device here" + (f" ({self.problem})" if self.problem else "")


def port_named(name: str, option: str) -> Backend:
    """The port of that name; ConfigError, with the option that named it, lists those there are."""
    from splash.hal.registry import load_backend

    try:
        return load_backend(name)
    except ConfigError as error:
        raise ConfigError(f"{error} ({option})") from None


def named_hardware(name: str) -> Here | Elsewhere:
    """A port by name or alias if its probe finds a device, else a hardware profile, the user's own among them.

    ConfigError, with the ports, the profiles and the closest name, where it is neither.
    """
    from splash.core.env import config_dir
    from splash.hal.registry import ports
    from splash.hw.load import known_profiles, profile_aliases

    if name.endswith(".toml") or "/" in name:
        return Elsewhere(name.rpartition("/")[2].removesuffix(".toml"), name, "")
    status = ports()
    port = next((port for port in status if _plain(name) in map(_plain, (port.name, *port.aliases))), None)
    if port is not None and port.devices:
        return Here(port.name)
    profiles = {*known_profiles(user_folder=config_dir()), *profile_aliases(user_folder=config_dir())}
    names = (name, name.casefold(), *((port.name, *port.aliases) if port else ()))
    profile = next((candidate for candidate in names if candidate in profiles), None)
    if profile is None:
        raise ConfigError(_unknown(name, port, status, sorted(profiles)))
    return Elsewhere(name, profile, port.problem if port else "")


def _unknown(name: str, port: PortStatus | None, status: list[PortStatus], profiles: list[str]) -> str:
    from splash.core.env import config_dir

    ports = [name for port in status for name in (port.name, *port.aliases)]
    note = "" if has_gpu_port(status) else f" ({NO_GPU_PORT})"
    listed = f"ports: {', '.join(ports)}{note}; hardware profiles to simulate: {', '.join(profiles)},"
    listed += f" those in {config_dir()}, or a TOML file (--hw)"
    if port is not None:
        return f"no {name} device here ({port.problem}), and no hardware profile of that name; {listed}"
    hint = closest(name.casefold(), sorted({*ports, *profiles}))
    return f"unknown hardware '{name}'{hint}; {listed}"


def has_gpu_port(status: list[PortStatus]) -> bool:
    """Whether anything but the port that every machine has is installed."""
    return any(port.name != EngineConfig().backend for port in status)


def _plain(name: str) -> str:
    return name.casefold().replace("-", "_")
