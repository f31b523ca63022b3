"""Workloads from files: one request a line, or traces that say how long requests are but not what is in them."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from splash.core.errors import KINDS, ConfigError, file_errors
from splash.engine.items import PARAMETERS, Item, MadeUp, When
from splash.sim.records import RequestFileError, json_object
from splash.sim.traces import LENGTHS, TIME, read_trace
from splash.sim.workload import Workload

_KEYS = ("prompt", "token_ids", "max_tokens", "arrival_s", "arrival_step", *PARAMETERS)
_MAX_SHOWN = 40
"""Characters of a line that is no workload's."""
_KINDS: dict[str, type] = {
    "temperature": float,
    "top_k": int,
    "top_p": float,
    "min_p": float,
    "seed": int,
    "stop_token_ids": list,
    "ignore_eos": bool,
}


def read_workload(file: Path) -> list[Item]:
    """Prompts, or a trace of lengths; ConfigError names the file and the line.

    Prompts are a JSON object a line: `prompt` (text) or `token_ids`; optional: `max_tokens`, `arrival_s` (seconds from
    the start), `arrival_step`, and `temperature top_k top_p min_p seed stop_token_ids ignore_eos`. A trace is what
    `splash.sim.traces` reads; its requests go on to the length that they had.
    """
    try:
        with file_errors(f"read the workload {file}", ConfigError, "--workload"):
            text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(
            f"the workload {file} is not UTF-8 text; it must be JSON lines or a trace (--workload)"
        ) from None
    check_start(text.splitlines(), file, "prompt or token_ids, or lengths")
    if _is_trace(text):
        return _trace_items(read_trace(file))
    items = list(_items(text.splitlines(), file))
    if not items:
        raise RequestFileError(file, 1, "there is no request; write one JSON object a line")
    return items


def check_start(lines: Iterable[str], file: Path, keys: str) -> None:
    """RequestFileError, with the forms there are, for a file of which the first line tells that it is something else.
    `keys`: what an object on a line of JSON says."""
    first = next((line for line in enumerate(lines, start=1) if line[1].strip()), None)
    if first is not None and not _may_begin(first[1].strip()):
        number, shown = first[0], first[1].strip()
        shown = shown if len(shown) <= _MAX_SHOWN else f"{shown[:_MAX_SHOWN]}…"
        raise RequestFileError(
            file,
            number,
            f"not a workload: the first line tells what a file is, JSON lines by an object ({keys}), a CSV trace by"
            f" its columns, as arrival_s,prompt_tokens,output_tokens; {shown!r} is neither",
        )


def _may_begin(line: str) -> bool:
    """Whether JSON lines, an array of JSON (which has a complaint of its own) or a CSV begins so."""
    if line[0] == "{":
        return line != "{"
    if line[0] == "[":
        return line[1:].lstrip()[:1] in ("", "{", "]")
    return not {name.strip(' "') for name in line.split(",")}.isdisjoint((*TIME, *LENGTHS))


def _is_trace(text: str) -> bool:
    """CSV, or JSON lines with lengths in them instead of prompts."""
    first, _, _ = text.lstrip().partition("\n")
    if not first.startswith("{"):
        return bool(first)
    try:
        keys = json_object(first).keys()
    except ValueError:
        return False
    return bool(keys & set(LENGTHS)) and not keys & {"prompt", "token_ids"}


def _trace_items(trace: Workload) -> list[Item]:
    """Prefixes that prompts have in common are not: nothing is kept of one prompt for the next."""
    places = [trace.place(index) for index in range(len(trace.arrivals))]
    return [
        Item(
            MadeUp(arrival.prompt_tokens, place),
            arrival.output_tokens,
            When(time_s=arrival.time_s),
            ignore_eos=True,
            place=place,
        )
        for place, arrival in zip(places, trace.arrivals, strict=True)
    ]


def _items(lines: list[str], file: Path) -> Iterator[Item]:
    last = When()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            data = json_object(line, parse_constant=_no_constant)
            item = replace(_parsed(data), place=f"{file.name}:{number}")
            if item.when.time_s < last.time_s or item.when.step < last.step:
                raise ValueError(_out_of_order(data, last))
        except ValueError as error:
            raise RequestFileError(file, number, str(error)) from None
        last = item.when
        yield item


def _out_of_order(data: dict[str, Any], last: When) -> str:
    """Why a request cannot follow one that arrives at `last`."""
    for missing, given, reached in (
        ("arrival_s", "arrival_step", last.time_s),
        ("arrival_step", "arrival_s", last.step),
    ):
        if reached and given in data and missing not in data:
            return (
                f"it has {given} and a request above it {missing}: seconds and steps do not mix in one file;"
                " use one of the two for all requests"
            )
    return "it arrives before the request above it; sort the lines by arrival"


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number that can be used")


def _parsed(data: dict[str, Any]) -> Item:
    unknown = [key for key in data if key not in _KEYS]
    if unknown:
        raise ValueError(f"unknown key '{unknown[0]}'; known: {', '.join(_KEYS)}")
    if ("prompt" in data) == ("token_ids" in data):
        raise ValueError("give either prompt or token_ids")
    prompt = (
        _token_ids(data["token_ids"], "token_ids") if "token_ids" in data else _typed(data, "prompt", str)
    )
    settings = {name: _typed(data, name, _KINDS[name]) for name in PARAMETERS if name in data}
    if "stop_token_ids" in settings:
        settings["stop_token_ids"] = _token_ids(settings["stop_token_ids"], "stop_token_ids")
    when = When(_from_zero(data, "arrival_step", int), float(_from_zero(data, "arrival_s", float)))
    return Item(prompt, _typed(data, "max_tokens", int) if "max_tokens" in data else None, when, **settings)


def _typed(data: dict[str, Any], key: str, kind: type) -> Any:
    value = data[key]
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise ValueError(f"{key} is {value!r}; it must be {KINDS[kind]}")
    return value


def _from_zero(data: dict[str, Any], key: str, kind: type) -> Any:
    value = _typed(data, key, kind) if key in data else 0
    if not 0 <= value <= threading.TIMEOUT_MAX:  # what can be waited for
        raise ValueError(f"{key} is {value}; it must be from 0 to {threading.TIMEOUT_MAX:.3g}")
    return value


def _token_ids(value: object, key: str) -> tuple[int, ...]:
    if not isinstance(value, list) or any(type(item) is not int for item in value):
        raise ValueError(f"{key} must be a list of whole numbers")
    return tuple(value)
