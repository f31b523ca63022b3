"""KDA, hyper-connections and the clamped MLP against transformers' modules, fp32.

A rank's share is its own heads: the shares of all ranks add up to the module's output.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from splash.model.layers import delta
from splash.model.layers.hyper import HyperConnection
from splash.model.layers.kda import KDA
from splash.model.layers.mlp import MLP
from splash.model.recurrent import RecurrentRows, StateRows, StateViews
from splash.model.weights import HyperWeights, KDAWeights
from splash.spec.model import HyperSpec, KDASpec

SPEC = KDASpec(num_heads=4, head_dim=16, conv_kernel=4, gate_lower_bound=-5.0)
HIDDEN, EPS, TOLERANCE = 48, 1e-5, 1e-4


@pytest.fixture(scope="module")
def flash() -> Any:
    """transformers' file of the model."""
    pytest.importorskip("transformers")
    from transformers.models.glm5_next import modeling_glm5_next

    return modeling_glm5_next


@pytest.fixture(scope="module")
def config() -> Any:
    pytest.importorskip("transformers")
    from transformers import Glm5NextTextConfig

    return Glm5NextTextConfig(
        hidden_size=HIDDEN,
        intermediate_size=40,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        linear_head_dim=16,
        linear_num_heads=4,
        rms_norm_eps=EPS,
    )


def filled(module: torch.nn.Module, *, seed: int) -> torch.nn.Module:
    """Weights N(0, 1/fan_in), vectors 0.5 N; norms 1 + 0.1 N."""
    draw = torch.Generator().manual_seed(seed)
    for name, tensor in module.named_parameters():
        tensor.data.normal_(generator=draw)
        tensor.data.mul_(tensor.shape[-1] ** -0.5 if tensor.dim() > 1 else 0.5)
        if "norm" in name:
            tensor.data.mul_(0.2).add_(1.0)
    return module.eval()


# ---- the delta rule


def inputs(t: int, heads: int, d: int, decay: float | None = None) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(t)
    q, k, v = (torch.randn(t, heads, d) for _ in range(3))
    g = -5 * torch.rand(t, heads, d) if decay is None else torch.full((t, heads, d), decay)
    return q / q.norm(dim=-1, keepdim=True), k / k.norm(dim=-1, keepdim=True), v, g, torch.rand(t, heads)


@pytest.mark.parametrize("decay", [None, 0.0, -5.0])
@pytest.mark.parametrize("t", [1, delta.BLOCK - 1, delta.BLOCK + 1, delta.CHUNK, 2 * delta.CHUNK + 3])
def test_many_steps_are_one_scan(t: int, decay: float | None) -> None:
    """Within a block, over blocks, over chunks; also where nothing decays and where all decays at most."""
    q, k, v, g, beta = inputs(t, 3, 32, decay)
    state = torch.randn(3, 32, 32)
    stepped, scanned = state.clone()[None], state.clone()
    outs = [delta.step(stepped, *(x[i : i + 1] for x in (q, k, v, g, beta))) for i in range(t)]
    out = delta.scan(scanned, q, k, v, g, beta)
    assert (out - torch.cat(outs)).abs().max() < TOLERANCE
    assert (scanned - stepped[0]).abs().max() < TOLERANCE


def test_the_delta_rule_is_its_definition() -> None:
    """S = exp(g) S; S += k (x) beta (v - S^T k); o = S^T q, in float64, index by index."""
    q, k, v, g, beta = (x.double() for x in inputs(7, 2, 5))
    state = torch.randn(2, 5, 5).double()
    slow, fast = state.clone(), state.clone()
    expected = torch.zeros(7, 2, 5).double()
    for i in range(7):
        for h in range(2):
            slow[h] = torch.diag(g[i, h].exp()) @ slow[h]
            slow[h] += torch.outer(k[i, h], beta[i, h] * (v[i, h] - slow[h].t() @ k[i, h]))
            expected[i, h] = slow[h].t() @ q[i, h]
    assert torch.allclose(delta.scan(fast, q, k, v, g, beta), expected, atol=1e-12)
    assert torch.allclose(fast, slow, atol=1e-12)


# ---- the mixer


def own_heads(module: Any, rank: int, ranks: int) -> KDAWeights:
    """What `rank` loads of transformers' module."""
    width = SPEC.num_heads * SPEC.head_dim // ranks
    mine = slice(rank * width, (rank + 1) * width)
    heads = slice(rank * SPEC.num_heads // ranks, (rank + 1) * SPEC.num_heads // ranks)
    gate = module.forget_gate
    parts = [module.q_proj.weight[mine], module.k_proj.weight[mine], module.v_proj.weight[mine]]
    parts += [module.b_proj.weight[heads], gate.f_a_proj.weight, module.g_a_proj.weight]
    conv = module.conv1d.weight.squeeze(1).view(3, -1, SPEC.conv_kernel)[:, mine]
    return KDAWeights(
        project=torch.cat(parts).detach(),
        f_b=gate.f_b_proj.weight[mine].detach(),
        g_b=module.g_b_proj.weight[mine].detach(),
        conv=conv.reshape(-1, SPEC.conv_kernel).t().contiguous().detach(),
        decay=gate.A_log[heads].exp().detach(),
        dt_bias=gate.dt_bias[mine].detach(),
        o_norm=module.o_norm.weight.detach(),
        o=module.o_proj.weight[:, mine].detach(),
    )


def scattered(num_requests: int, heads: int, *, layers: int = 2) -> tuple[StateViews, list[StateRows]]:
    """Rows of states at random places of pools full of NaN, zero where a state lies."""
    draw = torch.Generator().manual_seed(0)
    d = SPEC.head_dim
    sizes = heads * d, (SPEC.conv_kernel - 1) * 3 * heads
    pools, places = [], []
    for size in sizes:
        count = num_requests * layers * size
        rows = torch.randperm(2 * count, generator=draw)[:count]
        pool = torch.full((2 * count, d), torch.nan)
        pool[rows] = 0.0
        pools.append(pool)
        places.append(rows.view(num_requests, layers, 1, size))
    none = torch.empty(0, 1, 0, dtype=torch.int64)
    views = StateViews(*pools, torch.empty(0))
    return views, [StateRows(places[0][i], places[1][i], none) for i in range(num_requests)]


def together(states: list[StateRows]) -> StateRows:
    return StateRows(*(torch.cat(parts, dim=1) for parts in zip(*states, strict=True)))


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_kda_is_transformers(flash: Any, config: Any, ranks: int) -> None:
    """Two requests in common steps: chunks whose bounds are nobody's, single tokens, states of scattered rows."""
    module = filled(flash.Glm5NextTextLinearAttention(config, 0), seed=1)
    torch.manual_seed(2)
    a, b = torch.randn(90, HIDDEN), torch.randn(24, HIDDEN)
    with torch.inference_mode():
        expected = [module(x[None])[0] for x in (a, b)]
        plan = [(70, 5), (1, 1), (17, 2), (1, 15), (1, 1)]
        sums = [torch.zeros_like(x) for x in (a, b)]
        for rank in range(ranks):
            views, states = scattered(2, SPEC.num_heads // ranks)
            mixer = KDA(SPEC, own_heads(module, rank, ranks), views, layer=1, norm_eps=EPS)
            done = [0, 0]
            for counts in plan:
                spans = [slice(at, at + n) for at, n in zip(done, counts, strict=True)]
                h = torch.cat([a[spans[0]], b[spans[1]]])
                places = [slice(0, counts[0]), slice(counts[0], sum(counts))]
                single = [i for i in (0, 1) if counts[i] == 1]
                rows = RecurrentRows(
                    torch.tensor([places[i].start for i in single]),
                    together([states[i] for i in single]) if single else None,
                    tuple((places[i], states[i]) for i in (0, 1) if counts[i] > 1),
                )
                out = mixer(h, rows)
                for i in (0, 1):
                    sums[i][spans[i]] += out[places[i]]
                    done[i] += counts[i]
    for got, want in zip(sums, expected, strict=True):
        assert want.abs().max() > 0.1, "the case has no effect"
        assert (got - want).abs().max() < TOLERANCE


# ---- hyper-connections and the clamped MLP


def test_hyper_connections_are_transformers(flash: Any, config: Any) -> None:
    module = filled(flash.Glm5NextTextHyperConnection(config), seed=3)
    module.scale.data += 1.0
    spec = HyperSpec(streams=4, sinkhorn_iterations=config.hc_sinkhorn_iters, eps=config.hc_eps)
    weights = HyperWeights(fn=module.fn.data, base=module.base.data, scale=module.scale.data)
    torch.manual_seed(4)
    x = torch.randn(6, 4, HIDDEN)
    with torch.inference_mode():
        spread, mix, row = module(x[None])
        expected = spread[0, :, :, None] * row[0].tanh()[:, None] + mix[0].transpose(1, 2) @ x
        got = HyperConnection(spec, weights, EPS)(x, torch.tanh)
    assert (got - expected).abs().max() < 1e-5
    assert (mix.sum(-1) - 1).abs().max() < 1e-4, "mix is balanced"


def test_a_clamped_mlp_is_transformers(flash: Any, config: Any) -> None:
    module = filled(flash.Glm5NextTextMLP(config), seed=5)
    x = 30 * torch.randn(5, HIDDEN)
    gate_up = torch.cat([module.gate_proj.weight, module.up_proj.weight]).detach()
    down = module.down_proj.weight.detach()
    with torch.inference_mode():
        expected = module(x)
        assert (MLP(gate_up, down, config.swiglu_limit)(x) - expected).abs().max() < TOLERANCE
        assert (MLP(gate_up, down)(x) - expected).abs().max() > 1, "something is clamped"
