"""How FP8 KV is packed: the bytes of one cached entry, as FlashMLA and DeepSeek's kernels have them (MODELS §3.2)."""

from __future__ import annotations

from dataclasses import dataclass

GROUP = 128
"""Neighbouring elements that share a scale."""


@dataclass(frozen=True, slots=True)
class Packing:
    """An entry: `scaled` elements in fp8 e4m3, a float32 scale for each GROUP of them, `plain` elements in bfloat16.

    Latent attention: 512 + 4 * 4 + 2 * 64 = 656 bytes; an index key: 128 + 4 = 132.
    """

    scaled: int
    plain: int = 0

    @property
    def num_scales(self) -> int:
        return -(-self.scaled // GROUP)

    @property
    def width(self) -> int:
        """Elements."""
        return self.scaled + self.plain

    @property
    def num_bytes(self) -> int:
        return self.scaled + 4 * self.num_scales + 2 * self.plain
