"""Workloads from files as their publishers wrote them, and `load`, which takes a name or a file.

What a column means follows from its name (`TIME`, `PROMPT`, `OUTPUT`); columns that nothing here knows are ignored.
That covers the shapes of Azure's LLM traces, BurstGPT, Mooncake, Qwen-Bailian, vLLM's timed traces, and the plain
`arrival_s,prompt_tokens,output_tokens`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from splash.core.errors import ConfigError, closest
from splash.sim.generators import GENERATORS
from splash.sim.named import generated
from splash.sim.records import Records, RequestFileError, Row, read_records
from splash.sim.workload import NANOSECONDS, Arrival, Workload

TIME = ("arrival_s", "arrival_time", "TIMESTAMP", "Timestamp", "timestamp")
"""`arrival_s` counts seconds from the start of the run; the others are a clock that starts at the first row: dates
(Azure), seconds, or milliseconds (`_unit_of`)."""
PROMPT = ("prompt_tokens", "input_length", "prompt_len", "ContextTokens", "Request tokens")
OUTPUT = ("output_tokens", "output_length", "output_len", "GeneratedTokens", "Response tokens")
LENGTHS = (*PROMPT, *OUTPUT)

PREFIX_BLOCKS = (512, 256, 128, 64, 32, 16)
"""Tokens that a hash of a prompt's block may stand for: 512 in Mooncake's traces, 64 in LMCache's, 16 in Bailian's."""

LARGEST = 10**15
"""What a number in a file stays below: it is no time and no length any more."""


def load(name: str, *, seed: int, rate: float | None = None) -> Workload:
    """The workload of a name (`burst`, `rl-drain:prompts=64`) or a file.

    `seed` is for named ones. `rate`, requests per second, replaces the parameter of a named one and stretches the
    times of a file. ConfigError says what is wrong and, in a file, where.
    """
    if rate is not None and not 0 < rate < math.inf:
        raise ConfigError(f"--rate is {rate:g}; it must be above 0 requests per second")
    if name.partition(":")[0] in GENERATORS:
        return generated(name, seed=seed, rate=rate)
    path = Path(name)
    if not name or (not path.exists() and not path.suffix and "/" not in name):
        raise ConfigError(
            f"unknown workload '{name}'{closest(name.partition(':')[0], GENERATORS)}; known: {', '.join(GENERATORS)},"
            " or a file of one request a line, CSV or JSON (--workload)"
        )
    workload = read_trace(path)
    if rate is None:
        return workload
    try:
        return workload.at_rate(rate)
    except ValueError as error:
        raise ConfigError(f"--rate does not apply: {error}") from None


def read_trace(file: Path) -> Workload:
    """The requests of a file; RequestFileError names the line of what is missing, malformed or out of order."""
    records = read_records(file)
    time, prompt, output = (
        _column(records, known, what)
        for known, what in ((TIME, "arrival"), (PROMPT, "prompt length"), (OUTPUT, "output length"))
    )
    prompts = [_length(row, prompt, file) for row in records.rows]
    outputs = [_length(row, output, file) for row in records.rows]
    prefixes, block = _prefixes(records, prompts)
    times, unit = _times(records, time, block=block)
    sessions = _numbered(records, ("session",))
    groups = _numbered(records, ("step", "prompt_group") if "step" in records.columns else ("prompt_group",))
    arrivals = tuple(
        Arrival(time_ns, num_prompt, num_output, session=session, prefix=prefix, group=group)
        for time_ns, num_prompt, num_output, session, prefix, group in zip(
            times, prompts, outputs, sessions, prefixes, groups, strict=True
        )
    )
    note = f"arrival from {time} ({unit}), lengths from {prompt} and {output}"
    if block:
        note += f", prefix blocks of {block} tokens"
    lines = tuple(row.line for row in records.rows)
    return Workload(file.name, arrivals, note=note, prefix_block=block, lines=lines)


# ---- columns


def _column(records: Records, known: tuple[str, ...], what: str) -> str:
    for name in known:
        if name in records.columns:
            return name
    raise RequestFileError(
        records.file,
        1,
        f"no column for the {what}: expected one of {', '.join(known)}; found {', '.join(records.columns)}",
    )


def _value(row: Row, column: str, file: Path) -> Any:
    if column not in row.values:
        raise RequestFileError(file, row.line, f"{column} is missing; every request needs it")
    return row.values[column]


def _number(row: Row, column: str, file: Path) -> int | float:
    """A finite number, whole ones as int, so that none loses digits."""
    value = _value(row, column, file)
    number = _parsed(value)
    if number is None or not abs(number) < LARGEST:  # true for NaN too
        shown = "empty" if value == "" else repr(value)
        raise RequestFileError(file, row.line, f"{column} is {shown}; it must be a number, below 1e15")
    return number


def _parsed(value: Any) -> int | float | None:
    if isinstance(value, str) and "_" not in value:
        try:
            return int(value) if value.strip().isdigit() else float(value)
        except ValueError:
            return None
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _length(row: Row, column: str, file: Path) -> int:
    number = _number(row, column, file)
    shown = row.values[column]
    if number != int(number):
        raise RequestFileError(file, row.line, f"{column} is {shown}; it must be a whole number of tokens")
    if number < 1:
        advice = "; leave out requests that failed" if number == 0 else ""
        raise RequestFileError(file, row.line, f"{column} is {shown}; it must be at least 1 token{advice}")
    return int(number)


def _numbered(records: Records, columns: tuple[str, ...]) -> Iterable[int | None]:
    """For each row the number of its values in these columns, 0 for those seen first; None without such columns."""
    if not set(columns) <= set(records.columns):
        return [None] * len(records.rows)
    seen: dict[tuple[str, ...], int] = {}
    keys = (tuple(str(_value(row, column, records.file)) for column in columns) for row in records.rows)
    return [seen.setdefault(key, len(seen)) for key in keys]


# ---- times


def _times(records: Records, column: str, *, block: int) -> tuple[list[int], str]:
    """Nanoseconds of each row, ascending, and the unit that they were read in."""
    unit = _unit_of(records, column, block=block)
    if unit == "dates":
        times = _dates(records, column)
    else:
        scale = 10**6 if unit == "milliseconds" else NANOSECONDS
        times = [round(_number(row, column, records.file) * scale) for row in records.rows]
    start = 0 if column == "arrival_s" else times[0]
    last = start
    for row, time in zip(records.rows, times, strict=True):
        if time < last:
            what = f"{column} is {row.values[column]}: " + (
                "before the start of the run"
                if time < 0
                else "before the row above; sort the file by arrival"
            )
            raise RequestFileError(records.file, row.line, what)
        last = time
    return [time - start for time in times], unit


def _unit_of(records: Records, column: str, *, block: int) -> str:
    """dates | seconds | milliseconds. A `timestamp` beside `input_length` is Mooncake's, in whole milliseconds;
    Bailian's and other timed traces of that shape have seconds, with a fraction or with hashes of 16 tokens."""
    first = records.rows[0].values[column]
    if isinstance(first, str) and _parsed(first) is None and first.strip()[:4].isdigit() and "-" in first:
        return "dates"
    if column != "timestamp" or "input_length" not in records.columns or block == 16:
        return "seconds"
    numbers = (_number(row, column, records.file) for row in records.rows)
    return "milliseconds" if all(isinstance(number, int) for number in numbers) else "seconds"


def _dates(records: Records, column: str) -> list[int]:
    """Dates as `2023-11-16 18:15:46.6805900`, perhaps with `+00:00` behind; nanoseconds of the epoch."""
    texts = [str(_value(row, column, records.file)).strip().removesuffix("+00:00") for row in records.rows]
    try:
        return _epoch_ns(texts)
    except ValueError:
        for row, text in zip(records.rows, texts, strict=True):
            if not _is_date(text):
                what = f"{column} is '{text}'; it must be a date as 2023-11-16 18:15:46.6805900"
                raise RequestFileError(records.file, row.line, what) from None
        raise


def _epoch_ns(texts: list[str]) -> list[int]:
    dates = np.array(texts, dtype="datetime64[ns]")
    if np.isnat(dates).any():
        raise ValueError("not a time")
    return [int(time) for time in dates.astype(np.int64)]


def _is_date(text: str) -> bool:
    try:
        _epoch_ns([text])
    except ValueError:
        return False
    return True


# ---- prefixes


def _prefixes(records: Records, prompts: list[int]) -> tuple[list[tuple[int, ...]], int]:
    """The ids of each prompt's leading blocks, and a block's tokens: the largest size at which every prompt has as
    many ids as blocks. Without such a size, nothing (0)."""
    readers: dict[str, Callable[[Row, Path], tuple[int, ...]]] = {
        "hash_ids": _hash_ids,
        "hash_ranges": _hash_ranges,
    }
    for column, read in readers.items():
        if column in records.columns:
            prefixes = [read(row, records.file) for row in records.rows]
            block = _block_of(prefixes, prompts)
            return (prefixes if block else [()] * len(prompts)), block
    return [()] * len(prompts), 0


def _hash_ids(row: Row, file: Path) -> tuple[int, ...]:
    ids = _value(row, "hash_ids", file)
    if not isinstance(ids, list) or any(type(item) is not int for item in ids):
        raise RequestFileError(file, row.line, "hash_ids must be a list of whole numbers")
    return tuple(ids)


def _hash_ranges(row: Row, file: Path) -> tuple[int, ...]:
    """`[[0, 20], [35, 36]]`: ids 0 to 20, 35 and 36."""
    ranges = _value(row, "hash_ranges", file)
    pairs = isinstance(ranges, list) and all(
        isinstance(pair, list) and len(pair) == 2 and all(type(item) is int for item in pair)
        for pair in ranges
    )
    if not pairs:
        raise RequestFileError(file, row.line, "hash_ranges must be a list of pairs of whole numbers")
    return tuple(chain.from_iterable(range(low, high + 1) for low, high in ranges))


def _block_of(prefixes: list[tuple[int, ...]], prompts: list[int]) -> int:
    """A last, partial block may have an id or none."""
    for block in PREFIX_BLOCKS:
        if all(
            len(ids) in (prompt // block, -(-prompt // block))
            for ids, prompt in zip(prefixes, prompts, strict=True)
        ):
            return block
    return 0
