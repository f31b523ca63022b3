"""Which rows of a step choose their tokens, what they choose from on this rank, and where the chosen ones lie."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from splash.exec.frame import Frame, RankShape, index_of
from splash.exec.reading import Reading
from splash.hal.protocol import Attention
from splash.layout.exchange import Routes, gather_parts
from splash.layout.holders import local_blocks
from splash.layout.selection import Selecting
from splash.layout.writers import row_share
from splash.model.attention.selection import (
    NOWHERE,
    GatheredUse,
    PagedUse,
    Places,
    SelectingRows,
)
from splash.model.rope import RopeRows

ANYWHERE = 1 << 62


def selecting_rows(
    frame: Frame,
    routes: Routes,
    chosen: Selecting,
    rope: RopeRows,
    *,
    shape: RankShape,
    reading: Reading,
    attention: Attention,
    gather_tokens: int,
) -> SelectingRows:
    """`routes` are the frame's, with this step's positions; `rope` has the indexer's rotations of all rows."""
    assert shape.top_k is not None
    owned = chosen.by_owner[shape.rank]
    spans = (*chosen.own, *owned, *chosen.shared)
    first_rows = _first_rows(routes, spans)
    starts = [span.start for span in routes.spans]
    seqs = [reading.seq(frame, index, starts[index], 0, first_rows[index]) for index in spans]
    rows = index_of(routes.rows(spans))
    return SelectingRows(
        rows=rows,
        rope=rope.select(rows),
        prepared=attention.prepare_selection(
            [seq for seq in seqs if seq is not None], shape.block_size, shape.top_k, shape.pool
        ),
        tail=_tails(routes, spans, shape.pool) if shape.pool > 1 else None,
        num_own=routes.count(chosen.own),
        num_owned=routes.count(owned),
        num_shared=routes.count(chosen.shared),
        offers=chosen.offers,
        own=_paged_use(frame, routes, routes.own, first_rows, shape),
        here=_paged_use(frame, routes, frame.here, first_rows, shape),
        gathers=tuple(_gathered_uses(routes, first_rows, shape, gather_tokens)),
    )


def _tails(routes: Routes, spans: Sequence[int], pool: int) -> torch.Tensor:
    """Row by row the tokens that the row sees of a pool whose last token it does not see."""
    positions = [at for i in spans for at in range(routes.spans[i].start, routes.spans[i].end)]
    at = torch.tensor(positions, dtype=torch.int64)[:, None]
    tokens = (at + 1) // pool * pool + torch.arange(pool - 1)
    return tokens.masked_fill_(tokens > at, -1)


def _first_rows(routes: Routes, spans: Sequence[int]) -> dict[int, int]:
    """Span to its first row, where these spans follow each other."""
    first_rows: dict[int, int] = {}
    row = 0
    for index in spans:
        first_rows[index] = row
        row += routes.spans[index].count
    return first_rows


def _paged_use(
    frame: Frame, routes: Routes, attending: Sequence[int], first_rows: dict[int, int], shape: RankShape
) -> PagedUse | None:
    """Those of the `attending` spans that select, in the order of their queries."""
    spans = [i for i in attending if i in first_rows]
    if not spans:
        return None
    queries = _first_rows(routes, attending)
    counts = [range(routes.spans[i].count) for i in spans]
    sequence = [place for place, count in enumerate(counts) for _ in count]
    return PagedUse(
        chosen=index_of(
            [first_rows[i] + row for i, count in zip(spans, counts, strict=True) for row in count]
        ),
        queries=index_of([queries[i] + row for i, count in zip(spans, counts, strict=True) for row in count]),
        places=Places(
            _page_table(frame, routes, spans, shape), torch.tensor(sequence), 0, ANYWHERE, shape.block_size
        ),
    )


def _page_table(frame: Frame, routes: Routes, spans: Sequence[int], shape: RankShape) -> torch.Tensor:
    """[spans, blocks]: the slot of each block's first token in this rank's pages."""
    counts = [-(-routes.spans[i].end // shape.block_size) for i in spans]
    table = torch.full((len(spans), max(counts)), NOWHERE, dtype=torch.int64)
    for row, i, count in zip(table, spans, counts, strict=True):
        local = frame.sequences[i].table.local(0, count, routes.spans[i].present)
        if local is not None:
            row[local.first_block : count : local.block_step] = torch.from_numpy(
                local.pages * shape.block_size
            )
    return table


def _gathered_uses(
    routes: Routes, first_rows: dict[int, int], shape: RankShape, gather_tokens: int
) -> Iterator[GatheredUse | None]:
    """One a gather, in the order of `Reading.gathers`."""
    for index in (*routes.gathered, *routes.gathered_full):
        if index not in first_rows:
            yield None
            continue
        count = routes.spans[index].count
        share = range(count)
        if index in routes.gathered_full:
            share = row_share(shape.rank, count, shape.topo.ranks)
        yield _gathered_use(routes, index, first_rows[index], share, shape, gather_tokens)


def _gathered_use(
    routes: Routes, index: int, first_row: int, share: range, shape: RankShape, gather_tokens: int
) -> GatheredUse:
    """`share`: which of the span's rows attend on this rank."""
    span, topo, size = routes.spans[index], shape.topo, shape.block_size
    sequence = torch.zeros(len(share), dtype=torch.int64)
    parts = []
    for first, stop, tokens in gather_parts(span, topo, size, gather_tokens):
        table = torch.full((1, stop - first), NOWHERE, dtype=torch.int64)
        slot = 0
        for rank in range(topo.ranks):
            skipped = len(local_blocks(span.present, rank, 0, first, topo))
            for i, block in enumerate(local_blocks(span.present, rank, 0, stop, topo)[skipped:]):
                table[0, block - first] = slot + i * size
            slot += tokens[rank]
        parts.append(Places(table, sequence, first * size, min(stop * size, span.start), size))
    first_block = span.start // size
    own = torch.arange(first_block, -(-span.end // size)) * size - span.start
    entries = Places(own[None], sequence, span.start, span.end, size)
    return GatheredUse(slice(first_row + share.start, first_row + share.stop), tuple(parts), entries)
