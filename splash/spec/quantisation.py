"""How a checkpoint's matrices are quantised: the `quantization_config` of a config.json, read here and nowhere else.

A quantised matrix is `weight` with a tensor of scales beside it, and means element * scale of its tile. Shapes that
are understood: `fp8` of DeepSeek and GLM (tiles of `weight_block_size`, scales in `weight_scale_inv`),
`compressed-tensors` with 8-bit symmetric weights (`weight_scale` per channel, tensor or block), and SGLang's
`w8a8_int8` and `blockwise_int8`. How activations are quantised does not matter: they are not, here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from splash.core.errors import ConfigError
from splash.spec.fields import Fields

Element = Literal["fp8", "int8"]
ELEMENTS: tuple[Element, ...] = ("fp8", "int8")

_LISTS = ("modules_to_not_convert", "ignored_layers", "ignore")
_KEYS = ("quantization_config", "compression_config")

SCALE_SUFFIXES = ("_scale_inv", "_scale")
"""What the name of a matrix has added in the name of its scales, in either case to be multiplied by."""


@dataclass(frozen=True, slots=True)
class Quantisation:
    """8-bit elements, one scale for each tile of `rows` x `columns`; None is all there are."""

    element: Element
    rows: int | None
    columns: int | None
    plain: tuple[str, ...] = ()
    """Modules that are not quantised: full names, parts of one, or `re:` and a pattern."""

    @property
    def name(self) -> str:
        """For people: `fp8 in blocks of 128x128`, `int8 per channel`."""
        if self.rows is not None and self.columns is not None:
            return f"{self.element} in blocks of {self.rows}x{self.columns}"
        return f"{self.element} per {'tensor' if self.rows is None else 'channel'}"

    def scale_shape(self, shape: tuple[int, int]) -> tuple[int, int]:
        """[tiles down, tiles across] of a matrix [out, in]; the last tiles may be partial."""
        return _tiles(shape[0], self.rows), _tiles(shape[1], self.columns)

    def leaves_plain(self, tensor: str) -> bool:
        """Whether the config says that this tensor's module is not quantised."""
        module = tensor.rpartition(".")[0]
        return any(_names(entry, module) for entry in self.plain)


def read_quantisation(config: Fields) -> Quantisation | None:
    """What a config.json says; None if nothing. ConfigError for a scheme that cannot be computed here, by name."""
    section = config.section(*_KEYS)
    if section is None:
        nested = config.section("text_config")
        return None if nested is None else read_quantisation(nested)
    method = section.text("quant_method", default="")
    if method not in _READERS:
        found = f"'{method}'" if method else "none"
        raise ConfigError(
            f"{section.where}: quant_method {found} is not supported; supported: {', '.join(sorted(_READERS))}"
            f" (use such a release, or one in bfloat16)"
        )
    return _READERS[method](section)


def _fp8(section: Fields) -> Quantisation:
    if section.text("fmt", default="e4m3") not in ("e4m3", "float8_e4m3fn"):
        raise section.wrong("fmt", expected="e4m3 (other formats are not supported)")
    if section.raw("weight_block_size") is None:
        return Quantisation("fp8", None, None, plain=_plain(section))
    return Quantisation("fp8", *_block(section), plain=_plain(section))


def _int8_channels(section: Fields) -> Quantisation:
    return Quantisation("int8", 1, None, plain=_plain(section))


def _int8_blocks(section: Fields) -> Quantisation:
    return Quantisation("int8", *_block(section), plain=_plain(section))


def _compressed_tensors(section: Fields) -> Quantisation:
    """vLLM's compressed-tensors: config groups, of which all must agree on the weights."""
    groups = section.section("config_groups")
    weights = [group.section("weights") for group in (groups.sections().values() if groups else ())]
    read = {_compressed_weights(each) for each in weights if each is not None}
    if len(read) != 1:
        raise ConfigError(
            f"{section.where}: config_groups have {len(read)} kinds of weights; one kind is supported"
        )
    element, rows, columns = read.pop()
    return Quantisation(element, rows, columns, plain=_plain(section))


def _compressed_weights(weights: Fields) -> tuple[Element, int | None, int | None]:
    if weights.integer("num_bits", default=8) != 8:
        raise weights.wrong("num_bits", expected="8 (other widths are not supported)")
    if not weights.flag("symmetric", default=True):
        raise weights.wrong("symmetric", expected="true (zero points are not supported)")
    kind = weights.text("type", default="int")
    if kind not in ("int", "float"):
        raise weights.wrong("type", expected="int or float")
    element: Element = "int8" if kind == "int" else "fp8"
    match weights.text("strategy", default="tensor"):
        case "channel":
            return element, 1, None
        case "tensor":
            return element, None, None
        case "block":
            return element, *_block(weights, "block_structure")
    raise weights.wrong("strategy", expected="channel, tensor or block (others are not supported)")


_READERS: Mapping[str, Callable[[Fields], Quantisation]] = {
    "fp8": _fp8,
    "compressed-tensors": _compressed_tensors,
    "w8a8_int8": _int8_channels,
    "blockwise_int8": _int8_blocks,
}


def _block(section: Fields, key: str = "weight_block_size") -> tuple[int, int]:
    sizes = section.items(key)
    if len(sizes) != 2 or not all(type(size) is int and size > 0 for size in sizes):
        raise section.wrong(key, expected="two whole numbers: rows and columns of a block")
    return sizes[0], sizes[1]


def _plain(section: Fields) -> tuple[str, ...]:
    """The modules that a config leaves alone, under whichever name its tool has for the list."""
    entries = section.items(*_LISTS)
    if not all(isinstance(entry, str) for entry in entries):
        raise section.wrong(*_LISTS, expected="a list of names")
    for entry in entries:
        try:
            _names(entry, "")
        except re.error as error:
            raise ConfigError(f"{section.where}: {entry!r} is no regular expression: {error}") from None
    return entries


def _names(entry: str, module: str) -> bool:
    """`entry` is the module, a run of parts of its name, or a pattern that its name begins with."""
    if entry.startswith("re:"):
        return re.match(entry.removeprefix("re:"), module) is not None
    return f".{entry.strip('.')}." in f".{module}."


def _tiles(size: int, tile: int | None) -> int:
    return 1 if tile is None else -(-size // tile)
