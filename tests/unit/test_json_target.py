"""JSON of a run appears whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from splash.cli.output import JsonTarget
from splash.core.errors import ConfigError


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    """Red when an interrupted run leaves half a file, or destroys the one that was there."""
    file = tmp_path / "out.json"
    file.write_text("old")
    with pytest.raises(KeyboardInterrupt), JsonTarget(str(file)):
        raise KeyboardInterrupt
    assert file.read_text() == "old"
    with JsonTarget(str(file)) as target:
        target.write({"a": 1})
    assert json.loads(file.read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [file]


def test_a_draft_stays_if_nothing_better_comes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Red when figures are lost because a verification fails, or a stream gets them twice."""
    file = tmp_path / "out.json"

    def cut_short() -> None:
        with JsonTarget(str(file)) as target:
            target.draft({"a": 1})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cut_short()
    assert json.loads(file.read_text()) == {"a": 1}
    for final in (None, {"b": 2}):
        with JsonTarget(str(file)) as target, JsonTarget("-") as stream:
            for each in (target, stream):
                each.draft({"a": 1})
                if final is not None:
                    each.write(final)
        assert json.loads(file.read_text()) == json.loads(capsys.readouterr().out) == (final or {"a": 1})
    assert list(tmp_path.iterdir()) == [file]


def test_a_full_device_is_said() -> None:
    """Red when a disk that fills up gives a traceback."""
    with pytest.raises(ConfigError, match=r"cannot write /dev/full: No space left.*--json"):  # noqa: SIM117
        with JsonTarget("/dev/full") as target:
            target.write({"a": 1})


def test_what_cannot_be_written_is_said_at_once(tmp_path: Path) -> None:
    """Red when a wrong folder is found out at the end of the run."""
    for name in (tmp_path / "no" / "out.json", tmp_path):
        with pytest.raises(ConfigError, match=r"cannot write .*\(--json\)"), JsonTarget(str(name)):
            pass


def test_a_device_is_written_in_place() -> None:
    """Red when a pipe or a device is replaced by a file."""
    with JsonTarget("/dev/null") as target:
        target.write({"a": 1})
    assert Path("/dev/null").is_char_device()
