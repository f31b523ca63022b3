"""What a checkpoint has beside the tensors that its model computes with, and why."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from splash.model.folder import some
from splash.spec.model import ModelSpec
from splash.spec.quantisation import SCALE_SUFFIXES
from splash.spec.tensors import model_tensors, skipped_tensor

_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")
_DRAFTS = ("enorm.", "hnorm.", "eh_proj.", "shared_head.")
"""What a multi-token prediction layer has beside a decoder layer (MODELS §2.6)."""


@dataclass(frozen=True, slots=True)
class Unused:
    """Names of tensors that are not loaded. Made by `unused_tensors`."""

    drafts: tuple[str, ...]
    """Of multi-token prediction layers: counted by config.json, or with their marks."""
    outside: tuple[str, ...]
    """Of what is no part of the decoder, such as a vision tower."""
    foreign: tuple[str, ...]
    """Of the decoder, and of another model."""

    @property
    def notes(self) -> tuple[str, ...]:
        """A line on each kind that is to be expected, for people."""
        lines = []
        if self.drafts:
            layers = ", ".join(
                map(str, sorted({layer for name in self.drafts if (layer := layer_of(name)) is not None}))
            )
            lines.append(
                f"layer {layers} is for multi-token prediction: its {len(self.drafts)} tensors are not loaded"
            )
        if self.outside:
            lines.append(f"{some(list(self.outside))} is not part of the decoder: not loaded")
        return tuple(lines)


def unused_tensors(spec: ModelSpec, names: Iterable[str]) -> Unused:
    """Which of `names`, those of a plain causal model, `spec` has no use for; what nobody needs is not mentioned."""
    needed = {tensor.name for tensor in model_tensors(spec)}
    used = needed | {name + suffix for name in needed for suffix in SCALE_SUFFIXES} | {"lm_head.weight"}
    left = [name for name in names if name not in used]
    marked = _marked_layers(spec, left)
    kinds: dict[str, list[str]] = {"drafts": [], "outside": [], "foreign": []}
    for name in left:
        reason = skipped_tensor(spec, name)
        if reason == "multi-token prediction" or layer_of(name) in marked:
            kinds["drafts"].append(name)
        elif layer_of(name) is None:
            kinds["outside"].append(name)
        elif reason is None:
            kinds["foreign"].append(name)
    return Unused(tuple(kinds["drafts"]), tuple(kinds["outside"]), tuple(kinds["foreign"]))


def layer_of(name: str) -> int | None:
    """The decoder layer that a tensor belongs to; None if it is not in one."""
    match = _LAYER.fullmatch(name)
    return None if match is None else int(match[1])


def _marked_layers(spec: ModelSpec, names: Iterable[str]) -> set[int]:
    """Layers after the model's own that have the marks of multi-token prediction, counted or not."""
    return {
        int(match[1])
        for name in names
        if (match := _LAYER.fullmatch(name))
        and int(match[1]) >= spec.num_layers
        and match[2].startswith(_DRAFTS)
    }
