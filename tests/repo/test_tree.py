"""What the tree may contain: vendors' names, environment variables, markers, paths."""

import ast
import re
from pathlib import Path

from tests.repo.source import (
    ROOT,
    modules_below,
    parse,
    port_folders,
    project,
    repository_files,
    splash_modules,
)

VENDORS = re.compile(r"(?<![a-z])(nvidia|cuda|rocm|hip|amd|hygon|dcu|hcu)(?![a-z])")
CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
NEUTRAL = ("splash", "bench", "demo")
"""Folders of code that knows no vendor: ports, profiles, docs and tests may."""

MACHINE_PATHS = tuple(f"/{folder}/" for folder in ("work", "root"))


def _vendors_in(line: str) -> list[str]:
    """The vendors that a line names, by whole words of its identifiers and its text."""
    return VENDORS.findall(CAMEL.sub("_", line).lower())


def test_the_search_for_vendors_sees_words_not_letters() -> None:
    """Red when the next test turns blind or trigger-happy."""
    assert _vendors_in("is_cuda_graph = cudaGraph or torch.cuda or 'AMD'") == ["cuda", "cuda", "cuda", "amd"]
    assert not _vendors_in("ship the chip, relationship, camden, barracudas")


def test_no_vendor_outside_the_ports() -> None:
    """Red when the code asks who made the device instead of what it can do."""
    named = [
        f"{file.relative_to(ROOT)}:{number} names {vendor}"
        for folder in NEUTRAL
        for file in sorted((ROOT / folder).rglob("*.py"))
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1)
        for vendor in _vendors_in(line)
    ]
    assert not named


def test_environment_variables_are_read_in_one_place() -> None:
    """Red when a module beside core/env.py asks the environment."""
    readers = [
        module.where(node.lineno)
        for module in splash_modules()
        if module.name != "splash.core.env"
        for node in ast.walk(parse(module))
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
    ]
    assert not readers


def test_no_path_of_a_developers_machine() -> None:
    """Red when a path that exists on one machine only gets into a file of the repository."""
    found = [
        f"{file.relative_to(ROOT)} contains {path}"
        for file in repository_files()
        for path in MACHINE_PATHS
        if path.encode() in file.read_bytes()
    ]
    assert not found


def test_tests_share_through_kits() -> None:
    """Red when a test imports from another test's module: what two need has a module of its own, which says so."""
    shared = [
        f"{module.where(found.line)} imports {found.module}"
        for module in modules_below(ROOT / "tests", name="tests")
        for found in module.imports()
        if re.match(r"tests\.(\w+\.)*test_", found.module)
    ]
    assert not shared


def _packages() -> list[Path]:
    return [ROOT / name for name in project()["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]]


def test_every_port_is_packaged_and_registered() -> None:
    """Red when a port's folder is missing in pyproject.toml, in the wheel's list or in the entry points."""
    entry_points = project()["project"]["entry-points"]["splash.backends"]
    for folder in port_folders():
        assert folder in _packages()
        assert entry_points[folder.name.removeprefix("splash_")] == f"{folder.name}:SPEC"


def test_packages_are_typed_and_complete() -> None:
    """Red when a package has no py.typed, or a folder of modules has no __init__.py."""
    for package in _packages():
        if not (package / "__init__.py").exists():
            continue
        assert (package / "py.typed").exists(), package
        folders = {file.parent for file in package.rglob("*.py")}
        assert not [str(folder) for folder in folders if not (folder / "__init__.py").exists()]


def test_folders_of_packages_are_no_packages() -> None:
    """Red when backends/, kernels/ or hwprofiles/ become importable under names that others own."""
    for pattern in ("backends", "backends/*", "kernels", "hwprofiles"):
        assert not [folder for folder in ROOT.glob(pattern) if (folder / "__init__.py").exists()]
