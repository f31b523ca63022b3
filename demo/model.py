"""A compact DeepSeek-V3 for training on one CPU core: MLA, mixture of experts, fp32 weights, bf16 compute.

Parameters are named and shaped as in the checkpoint format of transformers' `deepseek_v3`, except that the
experts of a layer are stacked: `experts.gate_up` [E, 2I, D] (gate first) and `experts.down` [E, D, I].
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the model; names follow the checkpoint's config.json."""

    vocab_size: int = 2048
    hidden_size: int = 256
    intermediate_size: int = 768
    moe_intermediate_size: int = 96
    num_hidden_layers: int = 5
    first_k_dense_replace: int = 1
    num_attention_heads: int = 8
    q_lora_rank: int = 128
    kv_lora_rank: int = 64
    qk_nope_head_dim: int = 32
    qk_rope_head_dim: int = 16
    v_head_dim: int = 32
    n_routed_experts: int = 8
    num_experts_per_tok: int = 2
    routed_scaling_factor: float = 2.0
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1e4
    max_position_embeddings: int = 4096

    @property
    def qk_head_dim(self) -> int:
        """Dimensions of a query or key of one head."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim


class Linear(nn.Linear):
    """A matrix without bias, fp32 at rest, applied in the dtype of its input."""

    def __init__(self, num_in: int, num_out: int, *, scale: float = 1.0) -> None:
        super().__init__(num_in, num_out, bias=False)
        nn.init.normal_(self.weight, std=scale / math.sqrt(num_in))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype))


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last dimension."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), self.eps)


def rope_tables(shape: Shape, num_positions: int) -> tuple[Tensor, Tensor]:
    """cos and sin, [positions, qk_rope_head_dim / 2], fp32."""
    pairs = torch.arange(0, shape.qk_rope_head_dim, 2, dtype=torch.float32) / shape.qk_rope_head_dim
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), shape.rope_theta**-pairs)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate interleaved pairs (x0, x1), (x2, x3), ...; returns evens then odds, as transformers does."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.cat([even * cos - odd * sin, odd * cos + even * sin], dim=-1)


class Attention(nn.Module):
    """Multi-head latent attention in its expanded form (MODELS.md §2.2), causal."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        heads, dim = shape.num_attention_heads, shape.hidden_size
        self.shape = shape
        self.q_a_proj = Linear(dim, shape.q_lora_rank)
        self.q_a_layernorm = RMSNorm(shape.q_lora_rank, 1e-6)
        self.q_b_proj = Linear(shape.q_lora_rank, heads * shape.qk_head_dim)
        self.kv_a_proj_with_mqa = Linear(dim, shape.kv_lora_rank + shape.qk_rope_head_dim)
        self.kv_a_layernorm = RMSNorm(shape.kv_lora_rank, 1e-6)
        self.kv_b_proj = Linear(shape.kv_lora_rank, heads * (shape.qk_nope_head_dim + shape.v_head_dim))
        self.o_proj = Linear(heads * shape.v_head_dim, dim, scale=0.1)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
        """x [B, T, D] -> [B, T, D]; mask [T, T] additive, or None for the memory-lean kernel."""
        s, (batch, length, _) = self.shape, x.shape
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
        q = q.view(batch, length, s.num_attention_heads, s.qk_head_dim).transpose(1, 2)
        q_nope, q_rope = q.split([s.qk_nope_head_dim, s.qk_rope_head_dim], dim=-1)
        latent, k_rope = self.kv_a_proj_with_mqa(x).split([s.kv_lora_rank, s.qk_rope_head_dim], dim=-1)
        kv = self.kv_b_proj(self.kv_a_layernorm(latent))
        kv = kv.view(batch, length, s.num_attention_heads, -1).transpose(1, 2)
        k_nope, v = kv.split([s.qk_nope_head_dim, s.v_head_dim], dim=-1)
        k_rope = rotate(k_rope, cos, sin)[:, None].expand(-1, s.num_attention_heads, -1, -1)
        q = torch.cat([q_nope, rotate(q_rope, cos, sin)], dim=-1)
        k = torch.cat([k_nope, k_rope], dim=-1)
        out = _attend(q, k, v, mask)
        return self.o_proj(out.transpose(1, 2).reshape(batch, length, -1))


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Causal attention: q, k [B, H, T, Dk], v [B, H, T, Dv]; with `mask` the scores are materialised."""
    if mask is None:
        padding = q.shape[-1] - v.shape[-1]  # the fused kernel wants equal head sizes
        return F.scaled_dot_product_attention(q, k, F.pad(v, (0, padding)), is_causal=True)[
            ..., : v.shape[-1]
        ]
    batch, heads, length, size = q.shape
    scores = torch.baddbmm(
        mask.to(q.dtype).expand(batch * heads, length, length),
        q.reshape(batch * heads, length, size),
        k.reshape(batch * heads, length, size).transpose(1, 2),
        alpha=size**-0.5,
    )
    return torch.bmm(scores.softmax(-1), v.reshape(batch * heads, length, -1)).view(batch, heads, length, -1)


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, dim: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = Linear(dim, inner)
        self.up_proj = Linear(dim, inner)
        self.down_proj = Linear(inner, dim, scale=0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Experts(nn.Module):
    """The routed experts of a layer, stacked."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        num, dim, inner = shape.n_routed_experts, shape.hidden_size, shape.moe_intermediate_size
        self.gate_up = nn.Parameter(torch.randn(num, 2 * inner, dim) / math.sqrt(dim))
        self.down = nn.Parameter(torch.randn(num, dim, inner) * 0.1 / math.sqrt(inner))

    def forward(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """x [N, D], weights and expert ids [N, k] -> weighted sum of the chosen experts' outputs [N, D]."""
        num_chosen = chosen.shape[1]
        order = chosen.flatten().argsort(stable=True)
        counts = torch.bincount(chosen.flatten(), minlength=self.gate_up.shape[0]).tolist()
        rows = x[order // num_chosen].split(counts)
        outputs = []
        for expert, row in enumerate(rows):
            gate, up = F.linear(row, self.gate_up[expert].to(x.dtype)).chunk(2, dim=-1)
            outputs.append(F.linear(F.silu(gate) * up, self.down[expert].to(x.dtype)))
        inverse = torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))
        expanded = torch.cat(outputs)[inverse].view(*chosen.shape, -1)
        return (expanded * weights[..., None].to(x.dtype)).sum(1)


class Router(nn.Module):
    """Sigmoid scores; a bias, which only takes part in the choice, balances the load (MODELS.md §2.4)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.weight = nn.Parameter(torch.randn(shape.n_routed_experts, shape.hidden_size) * 0.02)
        self.register_buffer("e_score_correction_bias", torch.zeros(shape.n_routed_experts))
        self.register_buffer("load", torch.zeros(shape.n_routed_experts), persistent=False)
        self.e_score_correction_bias: Tensor
        self.load: Tensor

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [N, D] -> weights fp32 [N, k], ids [N, k]; adds the choices to `load`."""
        scores = F.linear(x.float(), self.weight).sigmoid()
        chosen = (scores.detach() + self.e_score_correction_bias).topk(
            self.shape.num_experts_per_tok, dim=-1
        )[1]
        weights = scores.gather(1, chosen)
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20) * self.shape.routed_scaling_factor
        self.load += torch.bincount(chosen.flatten(), minlength=len(self.load))
        return weights, chosen

    @torch.no_grad()
    def balance(self, rate: float) -> None:
        """Move the bias by `rate` towards the experts chosen less than the mean since the last call."""
        self.e_score_correction_bias += rate * torch.sign(self.load.mean() - self.load)
        self.load.zero_()


class MoE(nn.Module):
    """Routed experts and one shared expert."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate = Router(shape)
        self.experts = Experts(shape)
        self.shared_experts = MLP(shape.hidden_size, shape.moe_intermediate_size)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        weights, chosen = self.gate(flat)
        return self.experts(flat, weights, chosen).view_as(x) + self.shared_experts(x)


class Block(nn.Module):
    """A pre-norm decoder layer."""

    def __init__(self, shape: Shape, *, dense: bool) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.mlp = MLP(shape.hidden_size, shape.intermediate_size) if dense else MoE(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Transformer(nn.Module):
    """Embedding, layers, final norm: the part named `model.` in a checkpoint."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        nn.init.normal_(self.embed_tokens.weight, std=0.1)
        self.layers = nn.ModuleList(
            Block(shape, dense=layer < shape.first_k_dense_replace)
            for layer in range(shape.num_hidden_layers)
        )
        self.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)


class LanguageModel(nn.Module):
    """The whole model; computes in `dtype`."""

    def __init__(self, shape: Shape, *, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.shape, self.dtype = shape, dtype
        self.model = Transformer(shape)
        self.lm_head = Linear(shape.hidden_size, shape.vocab_size)

    def forward(self, ids: Tensor) -> Tensor:
        """ids [B, T] -> logits [B, T, vocabulary] in `dtype`."""
        length = ids.shape[1]
        cos, sin = (table.to(self.dtype) for table in rope_tables(self.shape, length))
        mask = torch.full((length, length), -torch.inf).triu(1) if length <= 512 else None
        x = self.model.embed_tokens(ids).to(self.dtype)
        for layer in self.model.layers:
            x = layer(x, cos, sin, mask)
        return self.lm_head(self.model.norm(x))

    def routers(self) -> list[Router]:
        """The routers of the mixture layers, in order."""
        return [module for module in self.modules() if isinstance(module, Router)]
