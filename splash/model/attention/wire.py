"""What the two exchanges of a layer look like on the wire: packing by destination, unpacking by source."""

from __future__ import annotations

import torch

from splash.model.attention.index import take
from splash.model.attention.projection import Projected
from splash.model.attention.rows import OutputExchange, QueryExchange


def pack_queries(new: Projected, plan: QueryExchange) -> torch.Tensor:
    """Per destination: own-head queries of its rows, then the KV entries that it stores. 1-D."""
    queries = take(new.own, plan.rows)
    if not plan.entries:
        return queries.reshape(-1)
    pieces: list[torch.Tensor] = []
    for rows, picked in zip(queries.split(plan.sent), plan.entries, strict=True):
        pieces.append(rows.reshape(-1))
        pieces += [torch.cat([field.index_select(0, picked) for field in new.entries], dim=1).view(-1)]
    return torch.cat(pieces)


def unpack_queries(
    received: torch.Tensor, plan: QueryExchange, *, heads: int, width: int
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Every source sent its heads of the same rows -> [rows, all heads, width]; and [entries, kv width] that rode."""
    by_source: list[torch.Tensor] = []
    ridden: list[torch.Tensor] = []
    size = plan.received * heads * width
    for part, num_entries in zip(received.split(plan.recv_counts), plan.entries_received, strict=True):
        by_source.append(part[:size].view(plan.received, heads, width))
        if num_entries:
            ridden.append(part[size:].view(num_entries, -1))
    return torch.cat(by_source, dim=1), torch.cat(ridden) if ridden else None


def pack_outputs(here: torch.Tensor, lse: torch.Tensor, plan: OutputExchange, *, ranks: int) -> torch.Tensor:
    """Per destination: its heads of the rows that return, then the LSE (fp32) of the partial ones. 1-D."""
    send = here.new_empty(sum(plan.send_counts))
    outputs = here[: plan.owned + plan.partial].unflatten(1, (ranks, -1))
    partial_lse = lse[plan.owned : plan.owned + plan.partial].unflatten(1, (ranks, -1))
    size = outputs[:, 0].numel()
    for rank, part in enumerate(send.split(plan.send_counts)):
        part[:size].view(outputs[:, 0].shape).copy_(outputs[:, rank])
        if plan.partial:
            part[size:].view(torch.float32).view(plan.partial, -1).copy_(partial_lse[:, rank])
    return send


def unpack_outputs(
    received: torch.Tensor, plan: OutputExchange, *, heads: int, width: int
) -> tuple[list[torch.Tensor], torch.Tensor, torch.Tensor]:
    """Whole rows of each source [n, heads, width], and partial ones [ranks, rows, heads, width] with their LSE."""
    whole: list[torch.Tensor] = []
    outs: list[torch.Tensor] = []
    lses: list[torch.Tensor] = []
    for part, num_owned in zip(received.split(plan.recv_counts), plan.owned_from, strict=True):
        owned, partial = num_owned * heads * width, plan.partial * heads * width
        if num_owned:
            whole.append(part[:owned].view(num_owned, heads, width))
        outs.append(part[owned : owned + partial].view(plan.partial, heads, width))
        lses.append(part[owned + partial :].view(torch.float32).view(plan.partial, heads))
    return whole, torch.stack(outs), torch.stack(lses)
