"""Blocks and their copies: a block is logical, its copies are pages on ranks.

`KVStore` owns the pools of all ranks and decides pages; it plans nothing. Ranks see only page ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from splash.kv.geometry import PoolGeometry
from splash.kv.pool import PagePool, PageState
from splash.layout.holders import Topology, holders
from splash.layout.layouts import Assignment

IN_USE = (PageState.RESERVED, PageState.LIVE, PageState.RETIRING, PageState.RECURRENT)
"""States of pages that belong to requests."""


class Block:
    """Up to block_size tokens of one request. `copies` maps (group, rank) to a page."""

    __slots__ = ("copies",)

    def __init__(self) -> None:
        self.copies: dict[tuple[int, int], int] = {}


class KVStore:
    """The pools of all ranks, and the pages of every block.

    Released pages are RETIRING until the result of the last step that may read them has been collected
    and no copier has them pinned.
    """

    def __init__(
        self,
        geometry: PoolGeometry,
        topo: Topology,
        block_size: int,
        *,
        state_pages: int = 0,
        prefer_slots: bool = False,
    ) -> None:
        """`state_pages`: pages of recurrent state that every request takes on every rank."""
        self.state_pages = state_pages
        self.geometry = geometry
        self.topo = topo
        self.block_size = block_size
        self.pools = [PagePool(geometry, rank, prefer_slots=prefer_slots) for rank in range(topo.ranks)]
        self._retiring: list[tuple[int, int, list[int]]] = []
        """(last step that reads them, rank, pages)."""
        self._placements: dict[tuple[Assignment, int], tuple[tuple[int, int], ...]] = {}
        self._fresh: dict[tuple[Assignment, int], tuple[int, ...]] = {}

    def keys(self, at: Assignment, block: int) -> tuple[tuple[int, int], ...]:
        """The (group, rank) pairs that hold `block` under `at`; memoised, the table is periodic in T."""
        key = (at, block % self.topo.ranks)
        known = self._placements.get(key)
        if known is None:
            known = tuple(
                (group, rank)
                for group in range(self.topo.groups)
                for rank in holders(at, block, group, self.topo)
            )
            self._placements[key] = known
        return known

    @property
    def num_free(self) -> int:
        """Pages of all ranks that can be taken now."""
        return sum(pool.available for pool in self.pools)

    def num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def missing(self, blocks: Sequence[Block], at: Assignment, first: int, stop: int) -> list[int]:
        """Pages per rank that blocks [first, stop) still lack under `at`; blocks past the end lack all."""
        need = [0] * self.topo.ranks
        for index in range(first, min(stop, len(blocks))):
            copies = blocks[index].copies
            for key in self.keys(at, index):
                if key not in copies:
                    need[key[1]] += 1
        new = range(max(first, len(blocks)), stop)
        rounds, rest = divmod(len(new), self.topo.ranks)
        if rounds:  # of the period of the table
            need = [n + rounds * sum(column) for n, column in zip(need, self._period(at), strict=True)]
        for index in new[:rest]:
            need = [a + b for a, b in zip(need, self.fresh(at, index), strict=True)]
        return need

    def fresh(self, at: Assignment, block: int) -> tuple[int, ...]:
        """Pages per rank that a new block takes under `at`; memoised."""
        key = (at, block % self.topo.ranks)
        known = self._fresh.get(key)
        if known is None:
            ranks = [rank for _, rank in self.keys(at, block)]
            known = tuple(ranks.count(rank) for rank in range(self.topo.ranks))
            self._fresh[key] = known
        return known

    def _period(self, at: Assignment) -> Iterable[tuple[int, ...]]:
        """For each rank, the pages that T new blocks in a row take there, one by one."""
        return zip(*(self.fresh(at, block) for block in range(self.topo.ranks)), strict=True)

    def fits(self, need: Sequence[int], margin: int = 0) -> bool:
        """Whether every rank that needs pages has them and `margin` more."""
        return all(n == 0 or pool.available >= n + margin for n, pool in zip(need, self.pools, strict=True))

    def lacking(self, need: Sequence[int], margin: int = 0) -> list[int]:
        """The ranks that make `fits` false."""
        return [r for r, n in enumerate(need) if n and self.pools[r].available < n + margin]

    def add_copies(
        self, block: Block, index: int, at: Assignment, state: PageState
    ) -> list[tuple[int, int, int]]:
        """Pages for what `block` lacks under `at`: the new (group, rank, page). The caller checked the room."""
        added: list[tuple[int, int, int]] = []
        copies, pools = block.copies, self.pools
        for key in self.keys(at, index):
            if key not in copies:
                group, rank = key
                page = copies[key] = pools[rank].take_one(state)
                added.append((group, rank, page))
        return added

    def take_state(self) -> list[list[int]]:
        """The pages of one request's recurrent state, per rank; the caller checked the room."""
        if not self.state_pages:
            return []
        return [pool.take(self.state_pages, PageState.RECURRENT) for pool in self.pools]

    def retire_state(self, state: Sequence[Sequence[int]], last_step: int) -> None:
        """Free a request's recurrent state once step `last_step` is collected."""
        for rank, pages in enumerate(state):
            for page in pages:
                self.retire(rank, page, last_step)

    def leave(self, blocks: Sequence[Block], old: Assignment, new: Assignment, last_step: int) -> None:
        """A request's blocks, which have copies under both, are at rest under `new`: its copies are LIVE, and those
        that only `old` needs retire."""
        ranks = self.topo.ranks
        for index in range(min(ranks, len(blocks))):  # the table is periodic
            alike = blocks[index::ranks]
            needed, before = self.keys(new, index), self.keys(old, index)
            for key in needed:
                if key not in before:
                    self.pools[key[1]].set_states([block.copies[key] for block in alike], PageState.LIVE)
            for key in before:
                if key not in needed:  # nor do blocks have it that came later
                    pages = [block.copies.pop(key, None) for block in alike]
                    self._retire(key[1], [page for page in pages if page is not None], last_step)

    def retire(self, rank: int, page: int, last_step: int) -> None:
        """Free `page` once step `last_step` is collected and nothing pins it."""
        self._retire(rank, [page], last_step)

    def retire_blocks(self, blocks: Iterable[Block], last_step: int) -> None:
        """Free all pages of a request's blocks once step `last_step` is collected."""
        pages: list[list[int]] = [[] for _ in self.pools]
        for block in blocks:
            for (_, rank), page in block.copies.items():
                pages[rank].append(page)
        for rank, retiring in enumerate(pages):
            self._retire(rank, retiring, last_step)

    def _retire(self, rank: int, pages: list[int], last_step: int) -> None:
        if pages:
            self.pools[rank].set_states(pages, PageState.RETIRING)
            self._retiring.append((last_step, rank, pages))

    def collect(self, step: int) -> bool:
        """Free retiring pages whose last reader is step `step` or earlier; whether there were any."""
        if not self._retiring:
            return False
        kept, freed = [], False
        for last_step, rank, pages in self._retiring:
            pool, left = self.pools[rank], pages
            if last_step <= step and (free := pool.unpinned(pages)):
                pool.release_all(free)
                left = pool.pinned(pages)
                freed = True
            if left:
                kept.append((last_step, rank, left))
        self._retiring = kept
        return freed

    def unread(self, step: int) -> list[int]:
        """Pages of each rank that `collect(step)` would free."""
        counts = [0] * self.topo.ranks
        for last_step, rank, pages in self._retiring:
            if last_step <= step:
                counts[rank] += len(self.pools[rank].unpinned(pages))
        return counts

    def used(self, rank: int) -> int:
        """Pages of the rank that are in use, whatever for, weights aside."""
        counts = self.pools[rank].counts()
        return sum(counts[state] for state in IN_USE)

    @property
    def num_retiring(self) -> int:
        return sum(len(pages) for _, _, pages in self._retiring)

    def check(
        self,
        blocks: Iterable[Block],
        extra: Iterable[tuple[int, int]] = (),
        states: Iterable[Sequence[Sequence[int]]] = (),
    ) -> None:
        """AssertionError unless the pages in use are exactly those of `blocks`, `extra` (rank, page), retiring ones and
        the recurrent `states` (per request and rank), of `state_pages` pages each."""
        held: list[set[int]] = [set() for _ in self.pools]
        total = 0
        for block in blocks:
            for (_, rank), page in block.copies.items():
                held[rank].add(page)
                total += 1
        retiring = ((rank, page) for _, rank, pages in self._retiring for page in pages)
        for rank, page in [*extra, *retiring]:
            held[rank].add(page)
            total += 1
        recurrent: list[set[int]] = [set() for _ in self.pools]
        for state in states:
            for rank, pages in enumerate(state):
                assert len(pages) == self.state_pages, f"rank {rank}: a state of {len(pages)} pages"
                recurrent[rank].update(pages)
                held[rank].update(pages)
                total += len(pages)
        assert total == sum(map(len, held)), "a page has two uses"
        for pool in self.pools:
            pool.check()
            assert pool.pages_in((PageState.RECURRENT,)) == recurrent[pool.rank], (
                f"rank {pool.rank}: pages of recurrent states"
            )
            used = pool.pages_in(IN_USE)
            assert used == held[pool.rank], (
                f"rank {pool.rank}: pages lost {used - held[pool.rank]}, unaccounted {held[pool.rank] - used}"
            )
