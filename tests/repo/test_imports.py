"""Imports go one way, the planning layers need nothing, and nothing heavy is imported early (DESIGN §6)."""

import ast
import sys
from collections.abc import Callable

import pytest

from tests.repo.source import (
    ROOT,
    Import,
    Module,
    dependencies,
    extras,
    imports_of,
    parse,
    port_folders,
    port_modules,
    run_python,
    splash_modules,
)

PLANNING = {"core", "spec", "layout", "kv", "sched"}
"""Standard library only."""

MAY_IMPORT: dict[str, set[str]] = {
    "core": set(),
    "spec": {"core"},
    "layout": {"core", "spec"},
    "hw": {"core", "spec", "layout"},
    "kv": {"core", "spec", "layout"},
    "sched": {"core", "spec", "layout", "kv"},  # a cost model is handed to it: no hw
    "sim": {"core", "spec", "layout", "hw", "kv", "sched"},
    "hal": {"core", "spec", "layout"},
    "model": {"core", "spec", "layout", "hal"},
    "exec": {"core", "spec", "layout", "hw", "kv", "sched", "hal", "model"},
}
"""Layer to the layers that it may import, itself apart."""
MAY_IMPORT["engine"] = {*MAY_IMPORT, "sim"}
MAY_IMPORT["server"] = {*MAY_IMPORT} - {"server"}
MAY_IMPORT["tui"] = {*MAY_IMPORT} - {"server", "tui"}
MAY_IMPORT["cli"] = {*MAY_IMPORT}
MAY_IMPORT["_demo"] = set()

PORTS_MAY_IMPORT = {"core", "spec", "layout", "hal"}

NO_TORCH = PLANNING | {"hw", "sim", "server", "tui"}
NO_CLOCK = PLANNING | {"hw", "sim"}
CLOCK_AND_CHANCE = {"time", "datetime", "random", "secrets", "uuid"}
NUMBERS = {"numpy", "tomli"}
"""What hw and sim may use beside the standard library."""

STANDARD = sys.stdlib_module_names | {"tomllib"}
"""Also of the Python versions that come after this one."""

HEAVY = {
    "torch",
    "numpy",
    "triton",
    "transformers",
    "tokenizers",
    "safetensors",
    "mpi4py",
    "jinja2",
    "plotly",
}


def _layer(name: str) -> str:
    """The layer of an imported name; empty for `splash` and its own names, such as the version."""
    parts = name.split(".")
    if parts[0] != "splash" or len(parts) == 1 or parts[1].startswith("__"):
        return ""
    return parts[1]


def _is_third_party(name: str) -> bool:
    return name not in STANDARD and name != "splash" and not name.startswith("splash_")


def _breaches(modules: list[Module], breach: Callable[[Module, Import], bool]) -> list[str]:
    """`file:line imports name` of every import for which `breach(module, import)` holds."""
    return [
        f"{module.where(found.line)} imports {found.module}"
        for module in modules
        for found in module.imports()
        if breach(module, found)
    ]


def test_every_package_below_splash_has_a_layer() -> None:
    """Red when a folder is added without saying what it stands on: tell MAY_IMPORT and docs/MAP.md."""
    folders = {file.parent.name for file in (ROOT / "splash").glob("*/__init__.py")}
    assert folders <= set(MAY_IMPORT), sorted(folders - set(MAY_IMPORT))


def test_layers_have_no_cycle() -> None:
    """Red when MAY_IMPORT itself lets two layers import each other."""
    for layer, below in MAY_IMPORT.items():
        assert layer not in below
        for other in below:
            assert layer not in MAY_IMPORT[other], (layer, other)
            assert MAY_IMPORT[other] <= below, (layer, other)


def test_imports_go_one_way() -> None:
    """Red when a lower layer imports a higher one, also in a function or for typing only."""

    def upward(module: Module, found: Import) -> bool:
        target = _layer(found.module)
        return target not in ("", module.layer) and target not in MAY_IMPORT[module.layer]

    layered = [module for module in splash_modules() if module.layer in MAY_IMPORT]
    assert not _breaches(layered, upward)


def test_splash_never_imports_a_port() -> None:
    """Red when a port is named in an import: ports are found by entry point."""
    ports = {folder.name for folder in port_folders()}
    assert not _breaches(splash_modules(), lambda module, found: found.top in ports)


def test_ports_import_the_contract_only() -> None:
    """Red when a port imports another port, the scheduler, the executor or the engine."""

    def outside(module: Module, found: Import) -> bool:
        if found.top.startswith("splash_"):
            return found.top != module.name.partition(".")[0]
        target = _layer(found.module)
        return target != "" and target not in PORTS_MAY_IMPORT

    assert not _breaches(port_modules(), outside)


def test_planning_layers_are_standard_library_only() -> None:
    """Red when core, spec, layout, kv or sched import a package, hw or sim one beyond numpy."""

    def foreign(module: Module, found: Import) -> bool:
        allowed = set() if module.layer in PLANNING else NUMBERS
        return module.layer in NO_CLOCK and _is_third_party(found.top) and found.top not in allowed

    assert not _breaches(splash_modules(), foreign)


def test_layers_without_tensors_import_no_torch() -> None:
    """Red when torch is imported where a plan, a price or a picture is made."""
    assert not _breaches(
        splash_modules(), lambda module, found: module.layer in NO_TORCH and found.top == "torch"
    )


def test_planning_reads_no_clock_and_draws_no_chance() -> None:
    """Red when time or randomness is not injected."""
    assert not _breaches(
        splash_modules(),
        lambda module, found: module.layer in NO_CLOCK and found.top in CLOCK_AND_CHANCE,
    )


def test_every_package_used_is_declared() -> None:
    """Red when the code imports a package that neither `pip install splash` nor one of its extras brings."""
    declared = dependencies() | extras()
    assert not _breaches(
        splash_modules() + port_modules(),
        lambda module, found: _is_third_party(found.top) and found.top not in declared,
    )


def test_extras_are_imported_where_they_are_used() -> None:
    """Red when a module cannot be imported without an extra: its packages belong into the function that needs them."""
    assert not [
        module.where(node.lineno)
        for module in splash_modules() + port_modules()
        for node in parse(module).body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for found in imports_of(node, package=module.package)
        if found.top in extras()
    ]


def test_planning_layers_load_nothing_foreign() -> None:
    """Red when a foreign package comes in by a detour that the walk over the imports does not see."""
    names = [module.name for module in splash_modules() if module.layer in NO_CLOCK]
    loaded = run_python(
        f"import importlib, sys\n"
        f"before = set(sys.modules)\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        f"print(*{{name.partition('.')[0] for name in set(sys.modules) - before}})"
    ).split()
    assert {name for name in loaded if _is_third_party(name)} <= NUMBERS


def _heavy_after(code: str) -> set[str]:
    """Which heavy packages a fresh interpreter has loaded after running the code, whatever it prints."""
    output = run_python(f"{code}\nimport sys\nprint()\nprint('loaded', *sys.modules)")
    loaded = output.splitlines()[-1].split()[1:]
    return HEAVY & set(loaded)


def test_import_splash_is_light() -> None:
    """Red when `import splash` starts to import anything heavy."""
    assert not _heavy_after("import splash")


def test_help_is_light() -> None:
    """Red when a command's module imports torch, numpy or the like before it is run."""
    commands = [[], ["run"], ["replay"], ["plan"], ["doctor"]]
    for command in commands:
        arguments = ["splash", *command, "--help"]
        code = (
            f"import sys\nsys.argv = {arguments!r}\nfrom splash.cli import main\n"
            f"try:\n    main()\nexcept SystemExit as stop:\n    assert not stop.code, stop.code"
        )
        assert not _heavy_after(code), arguments


@pytest.mark.parametrize("port", [folder.name for folder in port_folders()])
def test_a_ports_spec_is_light(port: str) -> None:
    """Red when looking at which ports exist loads their libraries."""
    assert not _heavy_after(f"import {port}\nassert {port}.SPEC")
