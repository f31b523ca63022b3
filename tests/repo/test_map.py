"""docs/MAP.md and the index of choices against the tree: what they name exists, and what exists has its line."""

import re

import pytest

from tests.repo.source import ROOT, port_folders, repository_files

MAP = (ROOT / "docs" / "MAP.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `(?P<folder>[^`]+)` \| (?P<text>.*) \| [^|]* \|$", re.MULTILINE)
FILE = re.compile(r"`((?:\w+/)*\w+\.(?:py|toml)|(?:\w+/)+)`")
"""A file or a folder in running text."""
FOLDERS = {row["folder"]: row["text"] for row in ROW.finditer(MAP)}
SCHEDULER = re.search(r"^## The scheduler.*?(?=^## )", MAP, re.MULTILINE | re.DOTALL)[0]  # type: ignore[index]
PROSE = ROW.sub("", MAP).replace(SCHEDULER, "")
"""The four lives, and what lies between them and the tables."""


def test_the_search_for_files_finds_some() -> None:
    """Red when the next tests turn blind."""
    assert FILE.findall(
        "`moe.py` and `attention/pipeline.py`, facts in `known/`, `Roster`, `owner`, `config.json`"
    ) == [
        "moe.py",
        "attention/pipeline.py",
        "known/",
    ]
    assert len(FILE.findall(FOLDERS["splash/sim"])) > 10
    assert len(FILE.findall(PROSE)) > 10


@pytest.mark.parametrize("folder", FOLDERS)
def test_files_in_the_line_of_a_folder_exist(folder: str) -> None:
    """Red when a file is renamed, moved or deleted and the map still shows the way to it."""
    assert (ROOT / folder).is_dir()
    assert not [name for name in FILE.findall(FOLDERS[folder]) if not (ROOT / folder / name).exists()]


def test_every_file_of_the_scheduler_has_its_line() -> None:
    """Red when a noun of the scheduler appears or goes and its table does not hear of it."""
    files = {file.name for file in (ROOT / "splash" / "sched").glob("*.py")} - {"__init__.py"}
    assert sorted(FILE.findall(SCHEDULER)) == sorted(files)


def test_files_in_the_lives_exist() -> None:
    """Red when one of the four lives leads to a file that is not there."""
    missing = [
        n for n in FILE.findall(PROSE) if not (ROOT / "splash" / n).exists() and not (ROOT / n).exists()
    ]
    assert not missing


def test_every_folder_has_its_line() -> None:
    """Red when a layer, a port or another folder with code appears that the map does not know."""
    top = {file.relative_to(ROOT).parts[0] for file in repository_files() if file.suffix in (".py", ".toml")}
    top -= {"splash", "backends", "pyproject.toml"}
    layers = {f"splash/{init.parent.name}" for init in (ROOT / "splash").glob("*/__init__.py")}
    ports = {str(folder.relative_to(ROOT)) for folder in port_folders()}
    assert not (top | layers | ports) - FOLDERS.keys()


def test_the_index_of_choices_is_complete() -> None:
    """Red when a choice of architecture has no line in the index, or a line leads nowhere."""
    folder = ROOT / "docs" / "adr"
    index = (folder / "README.md").read_text(encoding="utf-8")
    linked = re.findall(r"\]\((\d{4}-[\w-]+\.md)\)", index)
    assert sorted(linked) == sorted(file.name for file in folder.glob("[0-9]*.md"))
