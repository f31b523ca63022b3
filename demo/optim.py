"""Muon for matrices, AdamW for the rest, under one learning rate."""

from collections.abc import Callable

import torch
from torch import Tensor, nn


def orthogonalize(matrices: Tensor, *, steps: int = 5) -> Tensor:
    """The nearest semi-orthogonal matrices, roughly: a quintic Newton-Schulz iteration on [..., m, n], bf16.

    Coefficients from Keller Jordan's Muon; singular values end between about 0.7 and 1.2.
    """
    x = matrices.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised, scaled to the size of AdamW's (Moonlight: 0.2 sqrt(max(m, n)))."""

    def __init__(
        self, params: list[nn.Parameter], *, lr: float, momentum: float = 0.95, decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is None:
                    continue
                state = self.state[param]
                buffer = state.setdefault("momentum", torch.zeros_like(param))
                buffer.lerp_(param.grad, 1 - group["momentum"])
                update = orthogonalize(param.grad.lerp(buffer, group["momentum"]))
                scale = 0.2 * max(param.shape[-2:]) ** 0.5
                param.mul_(1 - group["lr"] * group["weight_decay"])
                param.add_(update.to(param.dtype), alpha=-group["lr"] * scale)


def make_optimizers(model: nn.Module, *, lr: float, decay: float) -> list[torch.optim.Optimizer]:
    """Muon over the matrices inside layers; AdamW over embeddings, head, router and norms."""
    matrices: list[nn.Parameter] = []
    decayed: list[nn.Parameter] = []
    plain: list[nn.Parameter] = []
    for name, param in model.named_parameters():
        if param.ndim < 2:
            plain.append(param)
        elif "embed_tokens" in name or "lm_head" in name or "mlp.gate." in name:
            decayed.append(param)
        else:
            matrices.append(param)
    groups = [{"params": decayed, "weight_decay": decay}, {"params": plain, "weight_decay": 0.0}]
    return [Muon(matrices, lr=lr, decay=decay), torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.98))]
