"""generation_config.json: when a model's makers end its text.

How they sample it is not taken from there: what is served is greedy unless a request or an option says otherwise, so
that the same command gives the same tokens whatever the checkpoint.
"""

from __future__ import annotations

from pathlib import Path

from splash.model.folder import read_object
from splash.spec.config import token_ids
from splash.spec.fields import Fields


def end_of_text(folder: Path) -> tuple[int, ...]:
    """The token ids that end a text; empty where the file is not there or names none: those of config.json hold.
    ConfigError names a value of the wrong type."""
    file = folder / "generation_config.json"
    return token_ids(Fields(read_object(file), str(file)), "eos_token_id") if file.exists() else ()
