"""What a command writes appears whole or not at all, and where it was meant to."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import click
import pytest

from splash import cli
from splash.cli.output import WIDTH, Target, json_text, output_console
from splash.core.errors import ConfigError


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    """Red when an interrupted run leaves half a file, or destroys the one that was there."""
    file = tmp_path / "out.json"
    file.write_text("old")
    with pytest.raises(KeyboardInterrupt), Target(file, "--json"):
        raise KeyboardInterrupt
    assert file.read_text() == "old"
    with Target(file, "--json") as target:
        target.write(json_text({"a": 1}))
    assert json.loads(file.read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [file]


def test_a_draft_stays_if_nothing_better_comes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Red when figures are lost because a verification fails, or a stream gets them twice."""
    file = tmp_path / "out.json"

    def cut_short() -> None:
        with Target(file, "--json") as target:
            target.draft(json_text({"a": 1}))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cut_short()
    assert json.loads(file.read_text()) == {"a": 1}
    for final in (None, {"b": 2}):
        with Target(file, "--json") as target, Target("-", "--json") as stream:
            for each in (target, stream):
                each.draft(json_text({"a": 1}))
                if final is not None:
                    each.write(json_text(final))
        assert json.loads(file.read_text()) == json.loads(capsys.readouterr().out) == (final or {"a": 1})
    assert list(tmp_path.iterdir()) == [file]


def test_piped_tables_are_as_wide_as_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when COLUMNS is not heard where there is no terminal, or a word in it is taken for a number."""
    for columns, width in [("132", 132), ("", WIDTH), ("wide", WIDTH), ("0", WIDTH)]:
        monkeypatch.setenv("COLUMNS", columns)
        assert output_console({}).width == width


def test_a_full_device_is_said() -> None:
    """Red when a disk that fills up gives a traceback."""
    with pytest.raises(ConfigError, match=r"cannot write /dev/full: No space left.*--json"):  # noqa: SIM117
        with Target("/dev/full", "--json") as target:
            target.write(json_text({"a": 1}))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("plan",), "cannot write standard output: No space left on device"),
        (("plan", "--json", "-"), "cannot write standard output: No space left on device (--json)"),
        (("plan", "--json", "/dev/full"), "cannot write /dev/full: No space left on device (--json)"),
    ],
)
def test_a_full_disk_is_named(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    said: str,
) -> None:
    """Red when nobody is told which of the outputs it was that could not be written."""
    with contextlib.suppress(OSError), Path("/dev/full").open("w") as full:
        monkeypatch.setattr("sys.stdout", full)
        assert cli._run(arguments) == 2
    assert capsys.readouterr().err == f"splash: {said}\n"


def test_what_cannot_be_written_is_said_at_once(tmp_path: Path) -> None:
    """Red when a wrong folder is found out at the end of the run."""
    for name in (tmp_path / "no" / "out.json", tmp_path):
        with pytest.raises(ConfigError, match=r"cannot write .*\(--json\)"), Target(name, "--json"):
            pass


def test_a_device_is_written_in_place() -> None:
    """Red when a pipe or a device is replaced by a file."""
    with Target("/dev/null", "--json") as target:
        target.write(json_text({"a": 1}))
    assert Path("/dev/null").is_char_device()


def test_standard_output_is_for_one_file_alone(tmp_path: Path) -> None:
    """Red when words get between the lines of a file, or two files into each other."""
    file = tmp_path / "out.json"
    assert not output_console({"--json": str(file), "--trace": None}).stderr
    assert output_console({"--json": str(file), "--trace": Path("-")}).stderr
    with pytest.raises(click.UsageError, match="--json and --trace cannot both go to standard output"):
        output_console({"--json": "-", "--trace": Path("-")})
    with pytest.raises(click.UsageError, match="--json and --report cannot both write"):
        output_console({"--json": str(file), "--report": f"{tmp_path}/./out.json"})
    assert output_console({"--json": "/dev/null", "--trace": Path("/dev/null")})
