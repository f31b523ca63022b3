"""Which tokens of a step end pools of the indexer, and where pools and unfinished ones go."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from splash.exec.frame import Frame, RankShape, index_of
from splash.model.attention.pooling import PoolRows


def pool_rows(frame: Frame, starts: Sequence[int], shape: RankShape) -> PoolRows:
    """Of this step, whose spans' first rows are at positions `starts`."""
    made = _Maker(frame.routes.num_rows, shape)
    for sequence, span, start, row in zip(
        frame.sequences, frame.routes.spans, starts, frame.routes.starts, strict=True
    ):
        assert sequence.state is not None
        made.add_span(sequence.state.rows.tail, start, start + span.count, row)
        for block, offset, pool in made.ended(start, start + span.count):
            for _, page in sequence.targets_of(block):
                made.write(pool, page, offset)
    return made.rows()


class _Maker:
    """Collects what `PoolRows` has, span after span."""

    def __init__(self, num_rows: int, shape: RankShape) -> None:
        self.num_rows = num_rows
        self.size, self.block_size = shape.pool, shape.block_size
        self.before: list[torch.Tensor] = []
        self.num_before = 0
        self.members: list[list[int]] = []
        self.entries: list[int] = []
        self.pages: list[int] = []
        self.offsets: list[int] = []
        self.unfinished: list[int] = []
        self.kept: list[torch.Tensor] = []
        self.first_pool = 0
        """Number of the current span's first pool among `members`."""

    def add_span(self, tail: torch.Tensor, start: int, end: int, row: int) -> None:
        """Tokens [start, end) are rows from `row` on; `tail` [layers, 1, pool - 1] holds those before."""
        size = self.size
        first, last = start // size * size, end // size * size
        earlier = range(self.num_rows + self.num_before, self.num_rows + self.num_before + start - first)
        tokens = [*earlier, *range(row, row + end - start)]
        self.first_pool = len(self.members)
        self.members += [tokens[at - first : at - first + size] for at in range(first, last, size)]
        if last > first and earlier:
            self.before.append(tail[:, 0, : len(earlier)])
            self.num_before += len(earlier)
        stays = max(start, last)
        self.unfinished += range(row + stays - start, row + end - start)
        self.kept.append(tail[:, 0, stays % size : stays % size + end - stays])

    def ended(self, start: int, end: int) -> list[tuple[int, int, int]]:
        """(block, place in its pages, number) of each pool of the current span that ends."""
        size = self.size
        firsts = range(start // size * size, end // size * size, size)
        return [
            (at // self.block_size, at % self.block_size // size, self.first_pool + i)
            for i, at in enumerate(firsts)
        ]

    def write(self, pool: int, page: int, offset: int) -> None:
        self.entries.append(pool)
        self.pages.append(page)
        self.offsets.append(offset)

    def rows(self) -> PoolRows:
        kept = torch.cat(self.kept, dim=1)
        return PoolRows(
            before=torch.cat(self.before, dim=1) if self.before else kept[:, :0],
            members=torch.tensor(self.members, dtype=torch.int64).view(-1, self.size),
            entries=index_of(self.entries),
            pages=torch.tensor(self.pages, dtype=torch.int64),
            offsets=torch.tensor(self.offsets, dtype=torch.int64),
            unfinished=index_of(self.unfinished),
            kept=kept,
        )
