"""Models by name: their config.json, as far as it is known, goes through the same normaliser as a checkpoint's.

`known/NAME.json` has the keys of a config.json, `_source` (where they come from) and where there is one
`_vision_params`; keys with an underscore are not shown to the normaliser.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from splash.core.errors import ConfigError, closest
from splash.spec.config import normalise
from splash.spec.model import ModelSpec

_FOLDER = files("splash.spec") / "known"


def known_models() -> tuple[str, ...]:
    """The names, sorted."""
    return tuple(
        sorted(file.name.removesuffix(".json") for file in _FOLDER.iterdir() if file.name.endswith(".json"))
    )


def known_model(name: str) -> ModelSpec:
    """The model called `name`; ConfigError lists the known ones, the closest first."""
    config = {key: value for key, value in _facts(name).items() if not key.startswith("_")}
    return normalise(config, where=f"{name}'s config.json")


def known_source(name: str) -> str:
    """Where the facts come from."""
    return str(_facts(name)["_source"])


def vision_params(name: str) -> int:
    """Parameters of the release's vision tower, which is not computed here; 0 if it has none.

    Tables of capacity count it in BF16 on every rank (MODELS §3.4).
    """
    return int(_facts(name).get("_vision_params", 0))


def _facts(name: str) -> dict[str, Any]:
    known = known_models()
    if name not in known:
        hint = closest(name.lower(), known)
        raise ConfigError(
            f"unknown model '{name}'{hint}; known: {', '.join(known)}, or the folder of a checkpoint (--model)"
        )
    facts: dict[str, Any] = json.loads((_FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return facts
