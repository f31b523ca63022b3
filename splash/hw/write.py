"""Profiles as TOML text, in one form: what measures or fits a profile writes it, and what reads it finds it again."""

import json
from collections.abc import Iterator, Mapping
from typing import Any


def quantity(value: float, source: str) -> dict[str, Any]:
    """A number with its provenance, as a profile's table has it; four digits are more than any of them is worth."""
    return {"value": float(f"{value:.4g}"), "source": source}


def put(table: dict[str, Any], path: str, value: object) -> None:
    """Sets what lies at a path such as `gemm.bfloat16.flops`, with the sections that lead to it."""
    *sections, key = path.split(".")
    for section in sections:
        table = table.setdefault(section, {})
    table[key] = value


def profile_text(table: Mapping[str, Any], *, comment: str) -> str:
    """A profile's table as a file; `comment` stands at its top. Read again, it gives the same table."""
    lines = [f"# {line}".rstrip() for line in comment.splitlines()]
    plain = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    lines += ["", *(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in plain.items())]
    for name, section in table.items():
        if isinstance(section, Mapping):
            lines += _section(name, section)
    return "\n".join(lines) + "\n"


def _section(name: str, section: Mapping[str, Any]) -> Iterator[str]:
    """A table's quantities under its own heading, then the tables in it."""
    quantities = {key: value for key, value in section.items() if "source" in value}
    if quantities:
        yield ""
        yield f"[{name}]"
        for key, value in quantities.items():
            source = json.dumps(value["source"], ensure_ascii=False)
            yield f"{key} = {{ value = {_number(value['value'])}, source = {source} }}"
    for key, value in section.items():
        if key not in quantities:
            yield from _section(f"{name}.{key}", value)


def _number(value: float) -> str:
    """The shortest text that reads as `value` again, of two."""
    texts = (f"{value:.15g}", f"{value:.4g}".replace("e+", "e"))
    return min((text for text in texts if float(text) == value), key=len, default=repr(value))
