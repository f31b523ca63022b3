"""Files of one request a line: what is read, and how what is wrong is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from splash.core.errors import ConfigError
from splash.sim.records import RequestFileError, Row, read_records


def _file(folder: Path, data: bytes) -> Path:
    file = folder / "trace"
    file.write_bytes(data)
    return file


@pytest.mark.parametrize(
    "data",
    [
        b"a,b\n1,x\n\n2,y\n",
        b"\xef\xbb\xbfa,b\r\n1,x\r\n\r\n2,y\r\n",
        b' a , b\n1, x\n\n2, "y"',
    ],
    ids=["plain", "byte order mark and CRLF", "spaces and quotes"],
)
def test_csv_rows_know_their_line(tmp_path: Path, data: bytes) -> None:
    """Red when an empty line shifts the numbers, or a mark or a space becomes part of a name or value."""
    records = read_records(_file(tmp_path, data))
    assert records.columns == ("a", "b")
    assert records.rows == (Row(2, {"a": "1", "b": "x"}), Row(4, {"a": "2", "b": "y"}))


def test_a_quoted_field_may_span_lines(tmp_path: Path) -> None:
    """Red when lines are counted by rows: the row after is named by its own line."""
    records = read_records(_file(tmp_path, b'a,b\n1,"x\ny"\n2,z\n'))
    assert [row.values["b"] for row in records.rows] == ["x\ny", "z"]
    assert records.rows[-1].line == 4


def test_json_lines_keep_their_types(tmp_path: Path) -> None:
    """Red when numbers become text, an empty line shifts the numbers, or a later object must have the same keys."""
    records = read_records(_file(tmp_path, b'{"a": 1, "b": [2]}\n\n  {"a": "x"}\n'))
    assert records.columns == ("a", "b")
    assert records.rows == (Row(1, {"a": 1, "b": [2]}), Row(3, {"a": "x"}))


@pytest.mark.parametrize(
    ("data", "line", "complaint"),
    [
        (b" \n\n", 1, "the file is empty"),
        (b'[{"a": 1}]', 1, "JSON array"),
        (b"a,b\n", 1, "no request below"),
        (b"a,b\n1,2\n1,2,3\n", 3, "3 fields, but the header has 2"),
        (b"a,b\n1\n", 2, "1 fields, but the header has 2"),
        (b"a, b,a\n1,2,3\n", 1, "two columns are called 'a'"),
        (b'{"a": 1}\n{"a": \n', 2, "not JSON"),
        (b'{"a": 1}\n7\n', 2, "expected a JSON object, found a whole number"),
        (b"a,b\n1,2\n1,\xff\n", 3, "not UTF-8"),
    ],
)
def test_what_is_wrong_is_named_by_line(tmp_path: Path, data: bytes, line: int, complaint: str) -> None:
    """Red when a bad row passes, or the message does not begin with the file and the line."""
    file = _file(tmp_path, data)
    with pytest.raises(RequestFileError) as caught:
        read_records(file)
    assert str(caught.value).startswith(f"{file}:{line}: ")
    assert complaint in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """Red when it is a traceback, or the option is not named."""
    with pytest.raises(ConfigError, match=r"cannot read the trace .*absent.* \(--workload\)"):
        read_records(tmp_path / "absent")
