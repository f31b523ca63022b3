"""What arrives when: named, seeded workloads for the demo model, files of one request a line, and traces that say how
long requests are but not what is in them."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from splash.core.errors import KINDS, ConfigError, closest, file_errors
from splash.core.params import SamplingParams
from splash.core.request import check_prompt
from splash.sim.generators import GENERATORS
from splash.sim.records import TraceError, json_object
from splash.sim.traces import LENGTHS, read_trace
from splash.sim.workload import Workload


@dataclass(frozen=True, slots=True)
class When:
    """Due at the boundary before step `step`, and not before `time_s` on the engine's clock.

    A step that never comes because nothing is left to do counts as come.
    """

    step: int = 0
    time_s: float = 0.0


@dataclass(frozen=True, slots=True)
class MadeUp:
    """A prompt of random tokens: of a trace only lengths are known. `key` tells it from the others."""

    num_tokens: int
    key: str


@dataclass(frozen=True, slots=True)
class Item:
    """One request of a workload: a prompt as text, as token ids, or to be made up. None: the run's own setting."""

    prompt: str | tuple[int, ...] | MadeUp
    max_tokens: int | None = None
    when: When = When()
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    stop_token_ids: tuple[int, ...] | None = None
    ignore_eos: bool | None = None
    elastic: bool = False
    """Cut to the model's limits instead of refused (named workloads)."""
    place: str = ""
    """File and line, of one that has them."""


PARAMETERS = ("temperature", "top_k", "top_p", "min_p", "seed", "stop_token_ids", "ignore_eos")
"""The sampling parameters that an item can set for itself."""


def load_workload(name: str, *, seed: int) -> list[Item]:
    """A workload by name or from a file."""
    if name in WORKLOADS:
        return WORKLOADS[name](random.Random(seed))
    path = Path(name)
    if path.suffix or path.is_file() or "/" in name:
        return read_workload(path)
    simulated = name.partition(":")[0] in GENERATORS
    raise ConfigError(
        f"unknown workload '{name}'{' (it is for simulated hardware)' if simulated else closest(name, WORKLOADS)};"
        f" known: {', '.join(WORKLOADS)}, or a file of JSON lines or a trace (--workload)"
    )


# ---- named


def _burst(rng: random.Random) -> list[Item]:
    """48 short requests at once."""
    return [_item(opening(rng), rng.randint(24, 64)) for _ in range(48)]


def _long(rng: random.Random) -> list[Item]:
    """Two long prompts, one after the other, with short answers."""
    return [
        _item(scene(rng, 6000), 96),
        _item(scene(rng, 9000), 96, step=60),
    ]


def _steady(rng: random.Random) -> list[Item]:
    """A request of medium length every twelve steps."""
    return [_item(opening(rng), rng.randint(80, 160), step=12 * i) for i in range(40)]


def _default(rng: random.Random) -> list[Item]:
    """A burst of many short requests that drains to a few long ones, then long prompts, one after the other; twice.

    Arrivals are by step, so the same layouts are visited on a slow machine as on a fast one.
    """
    items: list[Item] = []
    for start in (0, 2000):
        items += [_item(opening(rng), _drain_length(rng), step=start + i // 4) for i in range(56)]
        items += [_item(opening(rng), rng.randint(1400, 1600), step=start + 14) for _ in range(2)]
        items += [_item(scene(rng, 12000), rng.randint(8, 16), step=start + 1000 + 8 * i) for i in range(6)]
    return items


def _item(prompt: str, max_tokens: int, *, step: int = 0) -> Item:
    return Item(prompt, max_tokens, When(step=step), ignore_eos=True, elastic=True)


def _drain_length(rng: random.Random) -> int:
    """Mostly short, with a tail: the load falls by and by."""
    return min(600, 60 + int(rng.expovariate(1 / 120)))


DEFAULT = "default"
WORKLOADS: dict[str, Callable[[random.Random], list[Item]]] = {
    DEFAULT: _default,
    "burst": _burst,
    "long": _long,
    "steady": _steady,
}


@dataclass(frozen=True, slots=True)
class Job:
    """An item made ready for one model."""

    prompt: tuple[int, ...]
    params: SamplingParams
    when: When


def ready(
    item: Item, *, token_ids: Callable[[str | MadeUp], tuple[int, ...]], defaults: SamplingParams, limit: int
) -> Job:
    """Tokenised by `token_ids`, with `defaults` where the item does not say. Without a `max_tokens` of its own
    it gets the default, or what the limit leaves. RequestError as of `SamplingParams`."""
    if isinstance(item.prompt, MadeUp):
        check_prompt(item.prompt.num_tokens, limit)
    prompt = item.prompt if isinstance(item.prompt, tuple) else token_ids(item.prompt)
    max_tokens = item.max_tokens
    if max_tokens is None:
        max_tokens = max(1, min(defaults.max_tokens, limit - len(prompt)))
    if item.elastic:
        prompt, max_tokens = fitted(prompt, max_tokens, limit)
    own = {name: getattr(item, name) for name in PARAMETERS if getattr(item, name) is not None}
    return Job(prompt, replace(defaults, max_tokens=max_tokens, **own), item.when)


def fitted(prompt: tuple[int, ...], max_tokens: int, limit: int) -> tuple[tuple[int, ...], int]:
    """Prompt and output of an elastic item for a model of `limit` tokens: at most 3/4 for the prompt (its end
    is kept), and the rest for the output."""
    prompt = prompt[-max(1, limit * 3 // 4) :]
    return prompt, max(1, min(max_tokens, limit - len(prompt)))


# ---- prompts like the plays that the demo model was trained on

SPEAKERS = [
    "HAMLET",
    "HORATIO",
    "OPHELIA",
    "MACBETH",
    "BANQUO",
    "ROMEO",
    "JULIET",
    "MERCUTIO",
    "LEAR",
    "CORDELIA",
    "KENT",
    "OTHELLO",
    "IAGO",
    "PORTIA",
    "BRUTUS",
    "CASSIUS",
    "ANTONY",
    "CLEOPATRA",
    "PROSPERO",
    "MIRANDA",
    "ARIEL",
    "FALSTAFF",
    "HOTSPUR",
    "ROSALIND",
    "ORLANDO",
    "VIOLA",
    "MALVOLIO",
    "PUCK",
    "OBERON",
    "TITANIA",
    "BEATRICE",
    "BENEDICK",
    "SHYLOCK",
    "DUKE",
    "QUEEN",
]

LINES = (
    "But soft, what light through yonder window breaks?",
    "The quality of mercy is not strain'd;",
    "It droppeth as the gentle rain from heaven",
    "Upon the place beneath.",
    "Now is the winter of our discontent",
    "Made glorious summer by this sun of York;",
    "If music be the food of love, play on;",
    "Give me excess of it, that, surfeiting,",
    "The appetite may sicken, and so die.",
    "Tomorrow, and tomorrow, and tomorrow,",
    "Creeps in this petty pace from day to day,",
    "To the last syllable of recorded time;",
    "Friends, Romans, countrymen, lend me your ears;",
    "I come to bury Caesar, not to praise him.",
    "The evil that men do lives after them,",
    "The good is oft interred with their bones;",
    "All the world's a stage,",
    "And all the men and women merely players;",
    "They have their exits and their entrances,",
    "And one man in his time plays many parts,",
    "O that this too too solid flesh would melt,",
    "Thaw, and resolve itself into a dew!",
    "How weary, stale, flat, and unprofitable",
    "Seem to me all the uses of this world!",
    "Our revels now are ended. These our actors,",
    "As I foretold you, were all spirits, and",
    "Are melted into air, into thin air;",
    "We are such stuff",
    "As dreams are made on, and our little life",
    "Is rounded with a sleep.",
    "I know a bank where the wild thyme blows,",
    "Where oxlips and the nodding violet grows;",
    "Once more unto the breach, dear friends, once more;",
    "Or close the wall up with our English dead!",
    "This above all: to thine own self be true,",
    "And it must follow, as the night the day,",
    "Thou canst not then be false to any man.",
    "The lunatic, the lover, and the poet",
    "Are of imagination all compact.",
    "Good night, good night! Parting is such sweet sorrow",
    "That I shall say good night till it be morrow.",
    "Blow, winds, and crack your cheeks! Rage, blow!",
)
"""From the plays, which are in the public domain."""


def opening(rng: random.Random) -> str:
    """A speaker, alone or with a first line."""
    line = rng.choice(LINES) + "\n" if rng.random() < 0.7 else ""
    return f"{rng.choice(SPEAKERS)}.\n{line}"


def scene(rng: random.Random, num_chars: int) -> str:
    """About `num_chars` characters of speeches, ending with a speaker who is about to talk."""
    speeches = ["ACT II. SCENE II."]
    while sum(map(len, speeches)) < num_chars:
        first = rng.randrange(len(LINES) - 4)
        lines = LINES[first : first + rng.randint(2, 4)]
        speeches.append("\n".join((f"{rng.choice(SPEAKERS)}.", *lines)))
    return "\n\n".join([*speeches, f"{rng.choice(SPEAKERS)}.\n"])


def ids_for(prompt: str | MadeUp, *, seed: int, vocab_size: int) -> tuple[int, ...]:
    """Random token ids: as many as are to be made up, or, for a checkpoint without a tokenizer, about as many as a text
    would have."""
    if isinstance(prompt, str):
        prompt = MadeUp(max(1, len(prompt) // 3), prompt)
    rng = random.Random(f"{seed} {prompt.key}")
    return tuple(rng.randrange(vocab_size) for _ in range(prompt.num_tokens))


# ---- files

_KEYS = ("prompt", "token_ids", "max_tokens", "arrival_s", "arrival_step", *PARAMETERS)


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
    if _is_trace(text):
        return _trace_items(read_trace(file))
    items = list(_items(text.splitlines(), file))
    if not items:
        raise TraceError(file, 1, "there is no request; write one JSON object a line")
    return items


def _is_trace(text: str) -> bool:
    """CSV, or JSON lines with lengths in them instead of prompts."""
    first, _, _ = text.lstrip().partition("\n")
    if not first.startswith("{"):
        return bool(first)
    try:
        keys = json.loads(first).keys()
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
                raise ValueError("it arrives before the request above it; sort the lines by arrival")
        except ValueError as error:
            raise TraceError(file, number, str(error)) from None
        last = item.when
        yield item


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


_KINDS: dict[str, type] = {
    "temperature": float,
    "top_k": int,
    "top_p": float,
    "min_p": float,
    "seed": int,
    "stop_token_ids": list,
    "ignore_eos": bool,
}


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
