"""How one rank's pool is divided: T weight slots at its start, a null page, then ordinary pages."""

from __future__ import annotations

from dataclasses import dataclass

from splash.core.errors import CapacityError

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class PoolGeometry:
    """Pages [j * slot_pages, (j+1) * slot_pages) are slot j; a slot that is not resident serves as KV pages.

    Slot j holds head shard j of all layers (`shard_bytes`, padded to whole pages), at the same place on
    every rank, with a constant stride. The null page takes padding and warm-up writes.
    """

    num_pages: int
    page_bytes: int
    ranks: int
    shard_bytes: int

    def __post_init__(self) -> None:
        needed = self.null_page + 2
        if self.num_pages < needed:
            raise CapacityError(
                f"a pool of {self.num_pages} pages of {self.page_bytes} bytes is too small: {self.ranks} weight slots"
                f" of {self.slot_pages} pages, the null page and one KV page need {needed}"
                f" ({needed * self.page_bytes / MIB:.1f} MiB); raise --kv-pages or --pool-mib"
            )

    @property
    def slot_pages(self) -> int:
        return -(-self.shard_bytes // self.page_bytes)

    @property
    def null_page(self) -> int:
        return self.ranks * self.slot_pages

    @property
    def pool_bytes(self) -> int:
        return self.num_pages * self.page_bytes

    def slot(self, shard: int) -> range:
        """The pages of slot `shard`."""
        return range(shard * self.slot_pages, (shard + 1) * self.slot_pages)

    def slot_offset(self, shard: int) -> int:
        """Bytes from the pool's start to slot `shard`."""
        return shard * self.slot_pages * self.page_bytes

    def kv_pages(self, num_resident: int) -> int:
        """Pages that KV can use while `num_resident` shards are resident."""
        return self.num_pages - 1 - num_resident * self.slot_pages
