"""Files of one request a line, CSV with a header or JSON lines, as rows that know their line."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from splash.core.errors import KINDS, ConfigError, file_errors


@dataclass(frozen=True, slots=True)
class Row:
    """One request of a file: values by column, as text (CSV) or as JSON has them."""

    line: int
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Records:
    """`columns` are those of the header, or the keys of the first object; in a CSV every row has all of them."""

    file: Path
    columns: tuple[str, ...]
    rows: tuple[Row, ...]


class RequestFileError(ConfigError):
    """A file of requests is not usable; the message begins with the file and the line."""

    def __init__(self, file: Path, line: int, what: str) -> None:
        super().__init__(f"{file}:{line}: {what} (--workload)")


def read_records(file: Path) -> Records:
    """All rows of a file; RequestFileError names the line of what is no CSV or JSON, ConfigError an unreadable file."""
    text = _text(file)
    start = text.lstrip()
    if not start:
        raise RequestFileError(file, 1, "the file is empty; a trace has one request a line")
    if start[0] == "[":
        raise RequestFileError(file, 1, "this is a JSON array; write one object a line")
    rows = list(_json_rows(text, file) if start[0] == "{" else _csv_rows(text, file))
    if not rows:
        raise RequestFileError(file, 1, "there is a header but no request below it")
    return Records(file, tuple(rows[0].values), tuple(rows))


def _text(file: Path) -> str:
    with file_errors(f"read the trace {file}", ConfigError, "--workload"):
        data = file.read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise RequestFileError(
            file, line, "not UTF-8 text; convert it, or unpack it if it is compressed"
        ) from None


def _csv_rows(text: str, file: Path) -> Iterator[Row]:
    reader = csv.reader(io.StringIO(text, newline=""), skipinitialspace=True)
    header: list[str] = []
    try:
        for fields in reader:
            if not fields:
                continue
            if not header:
                header = _header(fields, file, reader.line_num)
            elif len(fields) != len(header):
                what = f"{len(fields)} fields, but the header has {len(header)}; give every row all columns"
                raise RequestFileError(file, reader.line_num, what)
            else:
                yield Row(reader.line_num, dict(zip(header, fields, strict=True)))
    except csv.Error as error:
        raise RequestFileError(file, reader.line_num, f"not CSV: {error}") from None


def _header(fields: list[str], file: Path, line: int) -> list[str]:
    header = [name.strip() for name in fields]
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise RequestFileError(file, line, f"two columns are called '{twice[0]}'; rename one")
    return header


def _json_rows(text: str, file: Path) -> Iterator[Row]:
    for number, line in enumerate(io.StringIO(text), start=1):
        if not line.strip():
            continue
        try:
            yield Row(number, json_object(line))
        except ValueError as error:
            raise RequestFileError(file, number, str(error)) from None


def json_object(line: str, *, parse_constant: Callable[[str], Any] | None = None) -> dict[str, Any]:
    """The object on a line of JSON, `parse_constant` as of `json.loads`; ValueError says at which column it is none."""
    try:
        value = json.loads(line.rstrip("\r\n"), parse_constant=parse_constant)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON, at column {error.colno}: {error.msg}") from None
    except RecursionError:
        raise ValueError("not JSON that can be read: it is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, found {KINDS[type(value)]}")
    return value
