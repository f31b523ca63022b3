"""DSA's lightning indexer: scores every cached token of a row and keeps the best, for all heads (MODELS §2.3).

Its weights are whole on every rank and rows are replicated, so every rank knows the index key of every new token, as
it knows its latent, and can compute any row's index query; nothing but candidates travels (`layout.selection`).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from splash.hal.protocol import Attention, Communicator
from splash.hal.ranking import best, positions_of
from splash.model.attention.index import take
from splash.model.attention.pooling import Pooling, PoolRows
from splash.model.attention.selection import GatheredUse, PagedUse, Selected, SelectingRows, Selection
from splash.model.attention.weights import IndexerWeights
from splash.model.layers.linear import linear
from splash.model.rope import RopeRows, rotate
from splash.spec.model import IndexerSpec

KEY_NORM_EPS = 1e-6
"""Of the index keys' LayerNorm, in every model whatever rms_norm_eps says (transformers)."""


class Indexer:
    """One layer's indexer on one rank; `keys` [pages, block_size, head_dim] are its pages."""

    def __init__(
        self,
        spec: IndexerSpec,
        weights: IndexerWeights,
        *,
        keys: torch.Tensor,
        comm: Communicator,
        attention: Attention,
        pooling: Pooling | None = None,
    ) -> None:
        self.spec = spec
        self.weights = weights
        self.keys = keys
        self.comm = comm
        self.attention = attention
        self.pooling = pooling

    def new_keys(self, h: torch.Tensor, rope: RopeRows) -> torch.Tensor:
        """`h` [n, hidden] -> [n, head_dim], rotated: what is cached."""
        w = self.weights
        keys = F.layer_norm(
            linear(h, w.wk), (self.spec.head_dim,), w.k_norm_weight, w.k_norm_bias, KEY_NORM_EPS
        )
        self._rotate(keys[:, None], rope)
        return keys

    def new_pools(self, keys: torch.Tensor, h: torch.Tensor, rows: PoolRows) -> torch.Tensor:
        """What `new_keys` gave for all rows of the step -> [pools, head_dim]: those that end in it, to be cached."""
        assert self.pooling is not None
        return self.pooling(keys, h, rows)

    def select(self, h: torch.Tensor, q_latent: torch.Tensor, rows: SelectingRows) -> Selection:
        """The chosen tokens of the step's selecting rows; their own keys are in the pages already.

        `h` [N, hidden] and `q_latent` [N, q_lora_rank], both normed and replicated.
        """
        queries, weights = self._queries(take(h, rows.rows), take(q_latent, rows.rows), rows.rope)
        tokens = self.attention.select(queries, weights, self.keys, rows.prepared)
        local = rows.num_own + rows.num_owned
        chosen = self._tokens(torch.cat([tokens[:local], self._share(tokens[local:], rows)]), rows)
        return Selection(
            positions=chosen,
            agreed=torch.cat([chosen[: rows.num_own], chosen[local:]]),
            own=_selected(chosen, rows.own),
            here=_selected(chosen, rows.here),
            gathers=tuple(None if use is None else _gathered(chosen, use) for use in rows.gathers),
        )

    def _queries(
        self, h: torch.Tensor, q_latent: torch.Tensor, rope: RopeRows
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Index queries [n, heads, head_dim], rotated, and the weights of heads [n, heads] fp32."""
        queries = linear(q_latent, self.weights.wq_b).view(len(h), self.spec.num_heads, self.spec.head_dim)
        self._rotate(queries, rope)
        return queries, linear(h, self.weights.heads).float() * self.spec.num_heads**-0.5

    def _tokens(self, keys: torch.Tensor, rows: SelectingRows) -> torch.Tensor:
        """Ranked keys [n, k] -> positions of the tokens that they stand for and of the unfinished pool, -1 for none."""
        last = positions_of(keys)
        if rows.tail is None:
            return last
        back = torch.arange(1 - self.spec.pool, 1, device=last.device)
        tokens = (last.unsqueeze(-1) + back).masked_fill(last.unsqueeze(-1) < 0, -1)
        return torch.cat([tokens.flatten(1), rows.tail], dim=1)

    def _rotate(self, x: torch.Tensor, rope: RopeRows) -> None:
        """The first rope_dim dimensions of [n, heads, head_dim], in place."""
        first = x[..., : self.spec.rope_dim]
        rotate(first, rope, out=first)

    def _share(self, tokens: torch.Tensor, rows: SelectingRows) -> torch.Tensor:
        """Best tokens here of the shared rows -> best tokens of all ranks, the same on all of them."""
        if not rows.num_shared:
            return tokens
        mine = tokens[:, : rows.offers[self.comm.rank]].reshape(-1)
        counts = [rows.num_shared * offered for offered in rows.offers]
        everyone = self.comm.all_gather_v(mine, counts).split(counts)
        candidates = torch.cat([part.view(rows.num_shared, -1) for part in everyone], dim=1)
        return best(candidates, self.spec.top_keys)  # at least so many: these contexts are longer


def _selected(chosen: torch.Tensor, use: PagedUse | None) -> Selected | None:
    return None if use is None else Selected(use.queries, use.places.slots(take(chosen, use.chosen)))


def _gathered(chosen: torch.Tensor, use: GatheredUse) -> tuple[torch.Tensor, ...]:
    positions = chosen[use.chosen]
    return tuple(places.slots(positions) for places in (*use.parts, use.entries))
