"""What a page holds: one block of tokens of one KV group in all layers, as aligned sections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm

from splash.core.errors import ConfigError
from splash.spec.packing import Packing

ALIGN_BYTES = 64


@dataclass(frozen=True, slots=True)
class Field:
    """Something cached per layer and KV group: `width` elements of `itemsize` bytes for every `pool` tokens."""

    name: str
    width: int
    itemsize: int
    dtype: str
    pool: int = 1
    packing: Packing | None = None
    """Set if `width` counts the bytes of packed entries."""

    @property
    def entry_bytes(self) -> int:
        """Bytes of one entry, which is `pool` consecutive tokens'."""
        return self.width * self.itemsize

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's share of an entry, rounded up."""
        return -(-self.entry_bytes // self.pool)


@dataclass(frozen=True, slots=True)
class Section:
    """Where (layer, field) of a page lies: `offset` bytes from its start, entries contiguous."""

    layer: int
    field: Field
    offset: int


@dataclass(frozen=True, slots=True)
class PageFormat:
    """The sections of a page, in order, and its size. Made by `page_format`."""

    block_size: int
    sections: tuple[Section, ...]
    page_bytes: int
    num_layers: int
    """With those that cache nothing."""

    @property
    def token_bytes(self) -> int:
        """Bytes that one token takes in one KV group, all layers, without padding."""
        return sum(s.field.token_bytes for s in self.sections)


def page_format(
    layers: Sequence[Sequence[Field]], block_size: int, *, multiple_of: int = ALIGN_BYTES
) -> PageFormat:
    """The page for `layers` (the fields that each layer caches, or none), sections aligned to ALIGN_BYTES.

    Its size is also a multiple of `multiple_of` bytes.
    """
    sections: list[Section] = []
    offset = 0
    for layer, fields in enumerate(layers):
        for field in fields:
            if block_size % field.pool:
                raise ConfigError(
                    f"blocks of {block_size} tokens do not hold whole pools of {field.pool} tokens ({field.name})"
                )
            sections.append(Section(layer, field, offset))
            offset += _aligned(field.entry_bytes * block_size // field.pool)
    page_bytes = _aligned(offset, lcm(ALIGN_BYTES, multiple_of))
    return PageFormat(block_size, tuple(sections), page_bytes, len(layers))


def _aligned(num_bytes: int, step: int = ALIGN_BYTES) -> int:
    return -(-num_bytes // step) * step
