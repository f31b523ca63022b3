"""What a page holds: one block of tokens of one KV group in all layers, as aligned sections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ALIGN_BYTES = 64


@dataclass(frozen=True, slots=True)
class Field:
    """Something cached per token, layer and KV group: `width` elements of `itemsize` bytes."""

    name: str
    width: int
    itemsize: int
    dtype: str

    @property
    def token_bytes(self) -> int:
        return self.width * self.itemsize


@dataclass(frozen=True, slots=True)
class Section:
    """Where (layer, field) of a page lies: `offset` bytes from its start, tokens contiguous."""

    layer: int
    field: Field
    offset: int


@dataclass(frozen=True, slots=True)
class PageFormat:
    """The sections of a page, in order, and its size. Made by `page_format`."""

    block_size: int
    sections: tuple[Section, ...]
    page_bytes: int

    @property
    def token_bytes(self) -> int:
        """Bytes that one token takes in one KV group, all layers, without padding."""
        return sum(s.field.token_bytes for s in self.sections)


def page_format(layers: Sequence[Sequence[Field]], block_size: int) -> PageFormat:
    """The page for `layers` (the fields that each layer caches), sections aligned to ALIGN_BYTES."""
    sections: list[Section] = []
    offset = 0
    for layer, fields in enumerate(layers):
        for field in fields:
            sections.append(Section(layer, field, offset))
            offset += _aligned(field.token_bytes * block_size)
    return PageFormat(block_size, tuple(sections), _aligned(offset))


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGN_BYTES) * ALIGN_BYTES
