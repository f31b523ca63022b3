"""Ports are found by name and alias, and a broken one hides no other."""

import subprocess
import sys
from collections.abc import Callable

import pytest

from splash.core.errors import ConfigError, PortError
from splash.hal import registry
from splash.hal.caps import DeviceInfo
from splash.hal.protocol import BackendSpec


def spec(name: str, aliases: tuple[str, ...] = (), probe: Callable[[], list[DeviceInfo]] | None = None):
    return BackendSpec(name, aliases, "a port", lambda: None, probe or (lambda: [DeviceInfo(0, "x", 1)]))


def raising(error: Exception) -> Callable[[], list[DeviceInfo]]:
    def probe() -> list[DeviceInfo]:
        raise error

    return probe


def install(monkeypatch: pytest.MonkeyPatch, *found: BackendSpec | Exception) -> None:
    """Make `found` the only ports; an exception is one that cannot be imported, called "broken"."""

    def load(item: BackendSpec | Exception) -> BackendSpec:
        if isinstance(item, Exception):
            raise item
        return item

    candidates = [
        registry._Candidate(
            "broken" if isinstance(item, Exception) else item.name, lambda item=item: load(item)
        )
        for item in found
    ]
    monkeypatch.setattr(registry, "_entry_points", lambda: iter(candidates))
    monkeypatch.setattr(registry, "_source_tree", lambda: iter(()))


def test_the_cpu_port_is_found_by_name_and_alias() -> None:
    """Red when the entry point or the source tree is no longer searched."""
    assert registry.find("cpu").name == "cpu"
    assert registry.find("CPU") == registry.find("host")


def test_aliases_ignore_case_and_dashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when a name has to be typed in one way."""
    install(monkeypatch, spec("big_chip", ("bc-1",)))
    for name in ("big_chip", "Big-Chip", "BC_1"):
        assert registry.find(name).name == "big_chip"


def test_unknown_names_are_told_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when the error does not list the ports and the closest name."""
    install(monkeypatch, spec("cpu", ("host",)), spec("other"))
    with pytest.raises(
        ConfigError, match=r"unknown port 'cpi' \(did you mean 'cpu'\?\); known: cpu \(host\), other"
    ):
        registry.find("cpi")


def test_failures_are_kept_with_their_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when one failing port hides another, or its reason is lost."""
    missing = PortError("libchip.so.1 is missing: install chip-runtime")
    install(
        monkeypatch,
        spec("good"),
        spec("lacking", probe=raising(missing)),
        spec("odd", probe=raising(OSError("driver"))),
        spec("empty", probe=list),
        ImportError("no module named chip"),
    )
    problems = {status.name: status.problem for status in registry.ports()}
    assert problems == {
        "broken": "cannot be imported: ImportError: no module named chip",
        "empty": "no device found",
        "good": "",
        "lacking": str(missing),
        "odd": "OSError: driver",
    }
    with pytest.raises(PortError, match="no module named chip"):
        registry.find("broken")


def test_specs_import_nothing_heavy() -> None:
    """Red when looking for ports imports torch or a port's library."""
    code = (
        "import sys; from splash.hal import registry; registry.ports();"
        "assert not {'torch', 'mpi4py', 'numpy'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
