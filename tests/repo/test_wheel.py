"""The wheel holds everything that runs: packages, profiles, the demo checkpoint, entry points."""

import configparser
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.repo.source import ROOT, project, repository_files, run_python

DEMO_LIMIT_BYTES = 12_000_000


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """A wheel built from this tree, without a build environment of its own and so without a network."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    (file,) = folder.glob("splash-*.whl")
    return zipfile.ZipFile(file)


def _metadata(wheel: zipfile.ZipFile, name: str) -> str:
    (entry,) = (entry for entry in wheel.namelist() if entry.endswith(f".dist-info/{name}"))
    return wheel.read(entry).decode()


def test_it_holds_every_file_of_its_packages_and_profiles(wheel: zipfile.ZipFile) -> None:
    """Red when data beside the code, or a new package, is left out."""
    targets = project()["tool"]["hatch"]["build"]["targets"]["wheel"]
    moved = {ROOT / name: Path(name).name for name in targets["packages"]}
    moved |= {ROOT / name: target for name, target in targets["force-include"].items()}
    wanted = {
        f"{target}/{file.relative_to(folder).as_posix()}"
        for folder, target in moved.items()
        for file in repository_files()
        if file.is_relative_to(folder)
    }
    assert "splash/_hwprofiles/cpu.toml" in wanted
    assert not wanted - set(wheel.namelist())


def test_it_installs_nothing_else(wheel: zipfile.ZipFile) -> None:
    """Red when tests, benches or a folder with a common name get into everybody's site-packages."""
    tops = {name.partition("/")[0] for name in wheel.namelist()}
    packages = {name for name in tops if not name.endswith(".dist-info")}
    assert packages <= {"splash", "splash_cpu"}


def test_the_demo_is_complete_and_small(wheel: zipfile.ZipFile) -> None:
    """Red when `splash run` of an installed splash would find no model, or one that is too large."""
    demo = [entry for entry in wheel.infolist() if entry.filename.startswith("splash/_demo/")]
    names = {Path(entry.filename).name for entry in demo}
    assert {"config.json", "tokenizer.json"} <= names
    assert any(name.endswith(".safetensors") for name in names)
    assert sum(entry.file_size for entry in demo) <= DEMO_LIMIT_BYTES


def test_entry_points_and_licence(wheel: zipfile.ZipFile) -> None:
    """Red when the command, the port or the licence gets lost."""
    parser = configparser.ConfigParser()
    parser.read_string(_metadata(wheel, "entry_points.txt"))
    assert parser["splash.backends"]["cpu"] == "splash_cpu:SPEC"
    assert parser["console_scripts"]["splash"] == "splash.cli:main"
    assert "License-Expression: Apache-2.0" in _metadata(wheel, "METADATA")
    notices = [file.name for file in ROOT.glob("NOTICE*")]
    for name in ["LICENSE", *notices]:
        assert _metadata(wheel, f"licenses/{name}") == (ROOT / name).read_text()


def test_an_installed_splash_finds_its_profiles(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    """Red when the loader only works in the source tree."""
    wheel.extractall(tmp_path)
    code = (
        "from splash.hw.load import load_profile, shipped_folder\n"
        "print(load_profile('cpu').name, shipped_folder())"
    )
    printed = run_python(code, path=str(tmp_path), cwd=tmp_path).split()
    assert printed == ["cpu", str(tmp_path / "splash" / "_hwprofiles")]
