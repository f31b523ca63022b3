"""Mixture of experts: routed experts lie on the ranks by number, shared ones are one MLP sharded by width."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch

from splash.model.layers.linear import linear
from splash.model.layers.mlp import MLP, gated
from splash.spec.model import MoESpec


class Router:
    """Chooses experts for every row, in fp32; all ranks choose alike since rows are replicated.

    `weight` [experts, hidden] fp32; `bias` [experts] fp32 is added for the choice only (MODELS §2.4).
    """

    def __init__(self, spec: MoESpec, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.spec = spec
        self.weight = weight
        self.bias = bias

    def __call__(self, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """`h` [n, hidden] -> expert numbers [n, top_k] int64 and their weights [n, top_k] fp32."""
        logits = linear(h.float(), self.weight)
        scores = logits.sigmoid() if self.spec.scoring == "sigmoid" else logits.softmax(-1)
        choice = scores if self.bias is None else scores + self.bias
        if self.spec.topk_group < self.spec.n_group:
            choice = self._mask_groups(choice)
        experts = choice.topk(self.spec.top_k, dim=-1, sorted=False).indices
        weights = scores.gather(1, experts)
        if self.spec.norm_topk:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return experts, weights * self.spec.scaling if self.spec.scaling != 1.0 else weights

    def _mask_groups(self, choice: torch.Tensor) -> torch.Tensor:
        """-inf for the experts of all groups but the `topk_group` best; a group counts its two best experts."""
        groups = choice.view(len(choice), self.spec.n_group, -1)
        best = groups.topk(2, dim=-1).values.sum(-1).topk(self.spec.topk_group, dim=-1, sorted=False).indices
        dropped = torch.ones_like(groups[..., 0], dtype=torch.bool).scatter_(1, best, False)
        return groups.masked_fill(dropped[..., None], -torch.inf).view_as(choice)


class MoE:
    """This rank's share of the routed and shared experts; one closing all-reduce adds both.

    `gate_up` [2 * ffn, hidden] each, `down` [hidden, ffn] each: of experts [first, first + experts here). `limit` as in
    `gated`.
    """

    def __init__(
        self,
        router: Router,
        gate_up: Sequence[torch.Tensor],
        down: Sequence[torch.Tensor],
        *,
        first: int,
        shared: MLP | None,
        limit: float | None = None,
    ) -> None:
        self.router = router
        self.gate_up = gate_up
        self.down = down
        self.shared = shared
        self.limit = limit
        self._here = range(first, first + len(self.gate_up))
        self._edges = torch.arange(first, first + len(self.gate_up) + 1, device=router.weight.device)

    def __call__(self, h: torch.Tensor) -> torch.Tensor:
        """[n, hidden] -> [n, hidden]"""
        experts, weights = self.router(h)
        share = torch.zeros_like(h) if self.shared is None else self.shared(h)
        if len(h) == 1:
            return self._add_routed_row(share, h, experts, weights)
        return self._add_routed(share, h, experts, weights)

    def _add_routed_row(
        self, share: torch.Tensor, h: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """One row: nothing to sort, and every operation saved counts."""
        for expert, weight in zip(experts[0].tolist(), weights[0].tolist(), strict=True):
            if expert in self._here:
                share.add_(self._expert(h, expert - self._here.start), alpha=weight)
        return share

    def _add_routed(
        self, share: torch.Tensor, h: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """Rows sorted by expert once; each expert of this rank that was chosen computes its run of them."""
        top_k = experts.shape[1]
        flat, order = experts.flatten().sort()
        edges = torch.searchsorted(flat, self._edges).tolist()
        starts = [edge - edges[0] for edge in edges]
        mine = order[edges[0] : edges[-1]]
        if not len(mine):
            return share
        rows = mine // top_k
        inputs = h.index_select(0, rows)
        outputs = torch.cat(
            [self._expert(inputs[a:b], i) for i, (a, b) in enumerate(pairwise(starts)) if a < b]
        )
        outputs *= weights.flatten().index_select(0, mine)[:, None]
        return share.index_add_(0, rows, outputs.to(share.dtype))

    def _expert(self, x: torch.Tensor, index: int) -> torch.Tensor:
        """[rows, hidden] through one expert of this rank."""
        return linear(gated(linear(x, self.gate_up[index]), self.limit), self.down[index])
