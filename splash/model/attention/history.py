"""The history of a gathered span, piece by piece from the ranks that hold it."""

from __future__ import annotations

import torch

from splash.hal.protocol import Communicator
from splash.layout.exchange import gathers_whole
from splash.layout.holders import Topology
from splash.model.attention.rows import HistoryPart


def gather_history(
    fields: tuple[torch.Tensor, ...], part: HistoryPart, comm: Communicator, topo: Topology, *, full: bool
) -> torch.Tensor:
    """One piece, from this rank's pages `fields` and those of all others.

    -> [groups, tokens, kv width]: all groups if `full`, else the own one. The order of tokens is by rank, which
    does not matter: every query sees all of them.
    """
    mine = part.tokens[comm.rank]
    packed = [_packed(fields, pages, mine) for pages in part.pages]
    if gathers_whole(topo, full=full):
        return _gather_all(packed, part.tokens, comm)
    width = packed[0].shape[1]
    send = torch.cat([packed[topo.group_of(rank)] for rank in range(topo.ranks)]).view(-1)
    received = comm.all_to_all_v(send, [mine * width] * topo.ranks, [n * width for n in part.tokens])
    return received.view(1, -1, width)


def _gather_all(packed: list[torch.Tensor], tokens: tuple[int, ...], comm: Communicator) -> torch.Tensor:
    """Every rank gives all its groups to every rank."""
    groups, width = len(packed), packed[0].shape[1]
    counts = [n * groups for n in tokens]
    received = comm.all_gather_v(torch.cat(packed), counts)
    if groups == 1:
        return received.unsqueeze(0)
    by_rank = zip(received.split(counts), tokens, strict=True)
    return torch.cat([part.view(groups, n, width) for part, n in by_rank], dim=1)


def _packed(fields: tuple[torch.Tensor, ...], pages: torch.Tensor, num_tokens: int) -> torch.Tensor:
    """The first `num_tokens` tokens of `pages`, all fields side by side [num_tokens, kv width]."""
    tokens = [field.index_select(0, pages).flatten(0, 1)[:num_tokens] for field in fields]
    return tokens[0] if len(tokens) == 1 else torch.cat(tokens, dim=1)
