"""New KV of a step: where it lies among a rank's entries, to whom it is sent, to which pages it is written.

A rank's entries are those it computes (`Projected.entries`), then those that arrive with exchange A.
"""

from __future__ import annotations

import numpy as np
import torch

from splash.exec.frame import Frame, RankShape, index_of, routes_at
from splash.layout.exchange import Ride, counts_a, rides
from splash.model.attention.rows import Appends, QueryExchange

Arrivals = dict[tuple[int, int], int]
"""(row, group) to the entry that it becomes on this rank."""


def rides_of(frame: Frame, starts: list[int], shape: RankShape) -> list[Ride]:
    """The new KV that travels in this step; `starts` are the positions of the spans' first rows."""
    if not frame.may_ride:
        return []
    return rides(routes_at(frame, starts), shape.topo, shape.block_size)


def entry_of(frame: Frame, row: int, group: int, shape: RankShape) -> int:
    """Where the new KV of (row, group), computed here, lies among the entries."""
    if shape.is_mla or row < frame.routes.num_sharded:
        return row
    return frame.routes.num_sharded + frame.full_kv_places[row] * shape.topo.groups + group


def arrivals_of(frame: Frame, ridden: list[Ride], shape: RankShape) -> Arrivals:
    """Entries that arrive, source after source, follow all that are computed here."""
    place = frame.routes.num_sharded + len(frame.full_kv_places) * shape.topo.groups
    arrivals: Arrivals = {}
    for ride in sorted((r for r in ridden if r.dst == shape.rank), key=lambda r: r.src):
        for row in range(ride.row, ride.row + ride.num_rows):
            arrivals[row, ride.group] = place
            place += 1
    return arrivals


def query_exchange(frame: Frame, ridden: list[Ride], shape: RankShape) -> QueryExchange | None:
    """Exchange A; None if no rank sends anything."""
    if not ridden:
        return frame.queries if frame.routes.has_queries else None
    rank, ranks = shape.rank, shape.topo.ranks
    counts = counts_a(frame.routes, ridden, shape.widths)
    picked: list[list[int]] = [[] for _ in range(ranks)]
    arriving = [0] * ranks
    for ride in ridden:
        rows = range(ride.row, ride.row + ride.num_rows)
        if ride.src == rank:
            picked[ride.dst] += [entry_of(frame, row, ride.group, shape) for row in rows]
        if ride.dst == rank:
            arriving[ride.src] += ride.num_rows
    return frame.queries._replace(
        entries=tuple(torch.tensor(p, dtype=torch.int64) for p in picked),
        entries_received=tuple(arriving),
        send_counts=tuple(counts[rank]),
        recv_counts=tuple(row[rank] for row in counts),
    )


def appends_of(frame: Frame, starts: list[int], arrivals: Arrivals, shape: RankShape) -> Appends:
    """Every new token to each page of this rank that is to have it, now or next."""
    entries: list[int] = []
    pages: list[int] = []
    offsets: list[int] = []
    size, routes = shape.block_size, frame.routes
    for sequence, span, position, row in zip(
        frame.sequences, routes.spans, starts, routes.starts, strict=True
    ):
        end = position + span.count
        while position < end:
            block, offset = divmod(position, size)
            count = min(size - offset, end - position)
            for group, page in sequence.targets_of(block):
                for i in range(count):
                    arrived = arrivals.get((row + i, group)) if arrivals else None
                    entries.append(entry_of(frame, row + i, group, shape) if arrived is None else arrived)
                    pages.append(page)
                    offsets.append(offset + i)
            position += count
            row += count
    return Appends(index_of(entries), _int64(pages), _int64(offsets))


def _int64(values: list[int]) -> torch.Tensor:
    """By way of numpy: `torch.tensor` takes half as long again with cold caches, as they are after a step."""
    return torch.from_numpy(np.array(values, dtype=np.int64))
