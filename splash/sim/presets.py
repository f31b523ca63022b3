"""Which model goes with which hardware, and how it is deployed, unless the command line says otherwise.

The rows of REFERENCE §4 for the models in it; for the others, what their release is stored in on eight devices that
hold it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from splash.core.config import DEMO, EngineConfig
from splash.core.errors import CheckpointError, file_errors
from splash.hw.load import load_profile
from splash.hw.profile import HardwareProfile
from splash.sim.settings import Settings
from splash.spec.config import normalise
from splash.spec.fields import Fields
from splash.spec.known import known_model, known_models, vision_params
from splash.spec.model import ModelSpec
from splash.spec.quantisation import read_quantisation

RANKS = 8
REQUEST_TOKENS = 32_768
"""Of a request whose recurrent state is to be shared out over its tokens."""
VISION_BYTES = 2
"""Of a parameter of a vision tower, which every rank has in BF16."""


@dataclass(frozen=True, slots=True)
class Preset:
    """A model's usual deployment."""

    hw: str
    settings: Settings


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model under the name that it was asked for by, and its usual deployment."""

    name: str
    spec: ModelSpec
    preset: Preset


@dataclass(frozen=True, slots=True)
class Choice:
    """A model on a kind of device, with the model's usual settings. Made by `choose`."""

    model: NamedModel
    profile: HardwareProfile

    @property
    def settings(self) -> Settings:
        return self.model.preset.settings


def preset(model_name: str) -> Preset:
    """The usual deployment of a model known by name; ConfigError lists the known ones."""
    spec = known_model(model_name)
    hw, settings = _ROWS[model_name]
    reserve = VISION_BYTES * vision_params(model_name)
    return Preset(hw, replace(settings, ranks=usual_ranks(spec, settings.ranks), reserve=reserve))


def find_model(name: str) -> NamedModel:
    """The model known by that name, or in that folder: there only config.json is read.

    A known name wins over a folder in the present directory; `./NAME` is the folder.
    """
    folder = Path(name)
    is_folder = folder.is_dir() or len(folder.parts) > 1 or name.startswith(".")
    if is_folder and name not in known_models():
        return _from_folder(folder)
    return NamedModel(name, known_model(name), preset(name))


def choose(model: str | None, hw: str | None, *, user_folder: Path | None = None) -> Choice:
    """Either may be left out: a model has its usual hardware, and hardware its usual model."""
    if model is None:
        profile = load_profile(hw or _ROWS[DEFAULT_MODEL][0], user_folder=user_folder)
        return Choice(usual_model(profile.name), profile)
    found = find_model(model)
    return Choice(found, load_profile(hw or found.preset.hw, user_folder=user_folder))


def usual_model(profile_name: str) -> NamedModel:
    """What is shown of a device when no model is named; of the one that every machine has, what is served there."""
    served = EngineConfig()
    if profile_name != served.backend:
        return find_model(_DEFAULT_MODELS.get(profile_name, DEFAULT_MODEL))
    demo = find_model(str(DEMO))
    return replace(demo, preset=Preset(profile_name, replace(demo.preset.settings, ranks=served.ranks)))


def adapted(
    settings: Settings,
    *,
    ranks: int | None = None,
    memory_fraction: float | None = None,
    weights: str | None = None,
    kv: str | None = None,
    request_tokens: int | None = None,
) -> Settings:
    """The settings with whatever was given on the command line in their place."""
    given: dict[str, Any] = {
        "ranks": ranks,
        "memory_fraction": memory_fraction,
        "weights": weights,
        "kv": kv,
        "request_tokens": request_tokens,
    }
    return replace(settings, **{name: value for name, value in given.items() if value is not None})


def usual_ranks(spec: ModelSpec, at_most: int = RANKS) -> int:
    """The largest number of ranks up to `at_most` that the model's heads can be divided over."""
    return max(ranks for ranks in allowed_ranks(spec, at_most))


def allowed_ranks(spec: ModelSpec, at_most: int) -> tuple[int, ...]:
    """All numbers of ranks up to `at_most` that the model's heads can be divided over, ascending."""
    return tuple(ranks for ranks in range(1, at_most + 1) if spec.fits_ranks(ranks))


# ---- the rows

DEFAULT_MODEL = "deepseek-v3.2"

_DEFAULT_MODELS: Mapping[str, str] = MappingProxyType(
    {"b200": "glm-5.3", "bw1000": "glm-5.3-flash", "h100": "glm-5.3-flash", "k100ai": "glm-5.3-flash"}
)

_ROWS: Mapping[str, tuple[str, Settings]] = MappingProxyType(
    {
        # REFERENCE §4
        "deepseek-v3.2": ("h200", Settings(RANKS, 0.90, "fp8_block", "fp8")),
        "glm-5.3": ("b200", Settings(RANKS, 0.85, "fp8_block", "fp8")),
        "glm-5.3-flash": ("bw1000", Settings(RANKS, 0.85, "int8", "bfloat16", REQUEST_TOKENS)),
        # Weights as released, KV in BF16: their attention is dense, and FP8 caches are no part of their release.
        "deepseek-v3": ("h200", Settings(RANKS, 0.90, "fp8_block", "bfloat16")),
        "glm-4.7-flash": ("h200", Settings(4, 0.90, "bfloat16", "bfloat16")),
        "llama-3.1-405b": ("h200", Settings(RANKS, 0.90, "fp8_block", "bfloat16")),
        "qwen3-235b": ("h200", Settings(RANKS, 0.90, "fp8_block", "bfloat16")),
    }
)


# ---- folders


def _from_folder(folder: Path) -> NamedModel:
    file = folder / "config.json"
    config = _read(file)
    spec = normalise(config, where=str(file))
    settings = Settings(
        ranks=usual_ranks(spec),
        weights=_stored_as(config, spec, where=str(file)),
        kv="float32" if spec.checkpoint_dtype == "float32" else "bfloat16",
        request_tokens=None if spec.kda is None else REQUEST_TOKENS,
    )
    name = folder.resolve().name
    return NamedModel(name.lstrip("_") or name, spec, Preset(_ROWS[DEFAULT_MODEL][0], settings))


def _read(file: Path) -> Any:
    with file_errors(f"read {file}", CheckpointError, "--model"):
        if not file.exists():
            known = ", ".join(known_models())
            raise CheckpointError(
                f"{file.parent} is neither a checkpoint, it has no {file.name}, nor a known model; known: {known}"
                " (--model)"
            )
        data = file.read_bytes()
    try:
        return json.loads(data)
    except ValueError as error:
        raise CheckpointError(f"{file} is not valid JSON: {error}") from None


def _stored_as(config: Any, spec: ModelSpec, *, where: str) -> str:
    """The name of the weight storage that is nearest to a checkpoint's."""
    quantisation = read_quantisation(Fields(config, where))
    if quantisation is None:
        return "float32" if spec.checkpoint_dtype == "float32" else "bfloat16"
    return "fp8_block" if quantisation.element == "fp8" else "int8"
