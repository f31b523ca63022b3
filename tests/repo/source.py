"""The source tree as data: packages, modules, and what each module imports."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Import:
    """One imported name, with the function-level, typing-only and `import_module("...")` ones."""

    module: str
    line: int

    @property
    def top(self) -> str:
        return self.module.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Module:
    """A Python file under its import name."""

    name: str
    file: Path

    @property
    def package(self) -> str:
        return self.name if self.file.name == "__init__.py" else self.name.rpartition(".")[0]

    @property
    def layer(self) -> str:
        """The first package below `splash`; empty for `splash` itself and for what lies elsewhere."""
        parts = self.name.split(".")
        return parts[1] if parts[0] == "splash" and len(parts) > 1 else ""

    def where(self, line: int) -> str:
        return f"{self.file.relative_to(ROOT)}:{line}"

    def imports(self) -> list[Import]:
        return list(imports_of(_tree(self.file), package=self.package))


def modules_below(folder: Path, *, name: str) -> list[Module]:
    """The modules of the package `name` that lies in `folder`."""
    found = []
    for file in sorted(folder.rglob("*.py")):
        parts = [name, *file.relative_to(folder).with_suffix("").parts]
        found.append(Module(".".join(parts[:-1] if parts[-1] == "__init__" else parts), file))
    return found


def splash_modules() -> list[Module]:
    return modules_below(ROOT / "splash", name="splash")


def port_folders() -> list[Path]:
    """The ports' packages that have code."""
    return sorted(file.parent for file in (ROOT / "backends").glob("*/splash_*/__init__.py"))


def port_modules() -> list[Module]:
    return [module for folder in port_folders() for module in modules_below(folder, name=folder.name)]


def parse(module: Module) -> ast.Module:
    return _tree(module.file)


def project() -> dict[str, Any]:
    """pyproject.toml, parsed."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def dependencies() -> set[str]:
    """Names of the packages that splash needs to run; each is imported by the same name."""
    return _names(project()["project"]["dependencies"])


def extras() -> set[str]:
    """Names of the packages that only an extra brings, development apart."""
    optional = project()["project"]["optional-dependencies"]
    return {name for extra, packages in optional.items() if extra != "dev" for name in _names(packages)}


def _names(requirements: list[str]) -> set[str]:
    return {re.split(r"[^A-Za-z0-9_-]", requirement, maxsplit=1)[0] for requirement in requirements}


@cache
def repository_files() -> tuple[Path, ...]:
    """Every file that git tracks or would add."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    files = (ROOT / name for name in names.split("\0") if name)
    return tuple(sorted({file for file in files if file.is_file()}))


def run_python(code: str, *, path: str = "", cwd: Path = ROOT) -> str:
    """What a fresh interpreter prints when it runs the code; fails with its errors."""
    lines = [f"import sys; sys.path.insert(0, {path!r})" if path else "", code]
    command = [sys.executable, "-c", "\n".join(lines)]
    result = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


@cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), filename=str(file))


def imports_of(tree: ast.AST, *, package: str) -> Iterator[Import]:
    """Every import in a piece of a module that belongs to `package`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _base(node, package=package)
            yield from (Import(f"{base}.{alias.name}", node.lineno) for alias in node.names)
        elif isinstance(node, ast.Call) and _is_dynamic_import(node.func):
            names = [arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant)]
            yield from (Import(name, node.lineno) for name in names if isinstance(name, str))


def _base(node: ast.ImportFrom, *, package: str) -> str:
    """The absolute module that a (possibly relative) `from` starts at."""
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    parts = parts[: len(parts) - node.level + 1]
    return ".".join([*parts, *([node.module] if node.module else [])])


def _is_dynamic_import(function: ast.expr) -> bool:
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in ("import_module", "__import__")
