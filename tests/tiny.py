"""Tiny random checkpoints of each supported model type, and what transformers computes with them.

transformers is the oracle (fp32, eager attention, eager experts). Heads default to 8, so that 1, 2, 4 and 8
ranks divide them; vocabulary 512, hidden size 128.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

VOCAB_SIZE = 512
_IMAGE_TOKENS = ("image", "video", "image_start", "image_end", "video_start", "video_end")

KINDS = (
    "deepseek_v3",
    "deepseek_v3_no_q_lora",
    "deepseek_v32",
    "glm4_moe_lite",
    "glm_moe_dsa",
    "llama",
    "qwen3_moe",
)
"""What `make_tiny` makes; `deepseek_v3_no_q_lora` is deepseek_v3 with q_proj straight from the hidden state."""

CLEAR_MARGIN = 1e-3
"""Least gap of the two best logits if a token is to be the same after another order of summation."""
CLEAR_ROUTER_GAP = 2e-5
"""Least gap between the scores of a chosen and a rejected expert, or group of experts."""
CLEAR_INDEX_GAP = 1e-5
"""Least gap between an indexer's scores of a chosen and a rejected token."""

INDEX_TOP_K = 16

_MLA = {"kv_lora_rank": 32, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32}
_MOE = {"moe_intermediate_size": 64, "num_experts_per_tok": 2, "norm_topk_prob": True}
_SHARED = {"n_shared_experts": 1, "routed_scaling_factor": 2.5}
_FLASH = {
    "qk_rope_head_dim": 0,
    "rms_norm_eps": 1e-5,
    "index_n_heads": 32,
    "index_head_dim": 32,
    "index_topk": 16,
    "index_kpool": 4,
    "linear_head_dim": 16,
}
VISION = {
    "depth": 1,
    "hidden_size": 32,
    "num_heads": 2,
    "intermediate_size": 64,
    "patch_size": 14,
    "image_size": 28,
    "out_hidden_size": 128,
    "projection_intermediate_size": 64,
}
_KEPT = ("A_log", "dt_bias", "hc.scale")
"""Tensors of glm5_next whose initial values are far from flat."""
_INDEXER = {"index_n_heads": 32, "index_head_dim": 32, "index_topk": INDEX_TOP_K}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 40.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def make_tiny(
    kind: str,
    folder: Path,
    *,
    heads: int = 8,
    kv_heads: int = 2,
    q_lora: int | None = 64,
    layers: int = 3,
    experts: int = 8,
    seed: int = 0,
    shards: int = 1,
    dtype: str = "float32",
    **config: Any,
) -> Path:
    """Write a random checkpoint of `kind` into `folder`, and return the folder.

    `kv_heads` is for llama and qwen3_moe, `q_lora` for the MLA kinds, `experts` is the number of routed ones.
    `shards` > 1 gives about that many files and an index. Further keywords go into the config under
    transformers' names, e.g. `intermediate_size=250`, `tie_word_embeddings=True`.
    """
    torch.set_num_threads(1)
    common = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "max_position_embeddings": 4096,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": None,
    }
    own = _own_config(kind, heads=heads, kv_heads=kv_heads, q_lora=q_lora, layers=layers, experts=experts)
    model = _build(kind, {**common, **own, **config}, seed=seed).to(getattr(torch, dtype))
    num_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
    model.save_pretrained(folder, max_shard_size=num_bytes + 2**20 if shards == 1 else num_bytes // shards)
    return folder


def _own_config(
    kind: str, *, heads: int, kv_heads: int, q_lora: int | None, layers: int, experts: int
) -> dict[str, Any]:
    """What the config of `kind` has beside the fields that all have."""
    mla = {**_MLA, **_MOE, **_SHARED, "num_key_value_heads": heads, "n_routed_experts": experts}
    gqa = {"num_key_value_heads": kv_heads, "head_dim": 16}
    plain_rope = {"rope_type": "default", "rope_theta": 1e6}
    deepseek = {
        "n_group": 4,
        "topk_group": 2,
        "first_k_dense_replace": 1,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {**_YARN},
    }
    glm = {
        "n_group": 1,
        "topk_group": 1,
        "mlp_layer_types": ["dense"] + ["sparse"] * (layers - 1),
        "rms_norm_eps": 1e-5,
        "rope_parameters": plain_rope,
    }
    kinds = ["linear_attention", "indexed_attention"]
    flash = {
        "n_group": 1,
        "topk_group": 1,
        "mlp_layer_types": glm["mlp_layer_types"],
        "layer_types": [kinds[layer % 2] for layer in range(layers)],
    }
    glm_dsa = {**glm, "rope_parameters": {"rope_type": "default", "rope_theta": 8e6}}
    shared = ["shared" if layer > 1 and layer % 2 == 0 else "full" for layer in range(layers)]
    qwen = {
        "num_experts": experts,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "rms_norm_eps": 1e-6,
        "rope_parameters": plain_rope,
    }
    return {
        "deepseek_v3": {**mla, **deepseek, "num_mtp_layers": 0, "q_lora_rank": q_lora},
        "deepseek_v3_no_q_lora": {**mla, **deepseek, "num_mtp_layers": 0, "q_lora_rank": None},
        "glm4_moe_lite": {**mla, **glm, "q_lora_rank": q_lora},
        "glm5_next": {**mla, **flash, **_FLASH, "q_lora_rank": q_lora, "linear_num_heads": heads},
        "deepseek_v32": {**mla, **_INDEXER, **deepseek, "q_lora_rank": q_lora},
        "glm_moe_dsa": {**mla, **_INDEXER, **glm_dsa, "q_lora_rank": q_lora, "indexer_types": shared},
        "llama": {**gqa, "rms_norm_eps": 1e-5, "rope_parameters": {**_LLAMA3}},
        "qwen3_moe": {**gqa, **_MOE, **qwen},
    }[kind]


def _build(kind: str, config: dict[str, Any], *, seed: int) -> Any:
    """The transformers model with random weights that are far from flat (the default initialisation is not)."""
    torch.manual_seed(seed)
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if kind == "glm5_next":
        images = {f"{name}_token_id": VOCAB_SIZE - 8 + i for i, name in enumerate(_IMAGE_TOKENS)}
        nested = transformers.Glm5NextConfig(text_config=config, vision_config=dict(VISION), **images)
        model = transformers.Glm5NextForConditionalGeneration._from_config(
            nested, attn_implementation="eager"
        )
        return _refilled(model, seed)
    cls = {
        "deepseek_v3": "DeepseekV3",
        "deepseek_v3_no_q_lora": "DeepseekV3",
        "deepseek_v32": "DeepseekV32",
        "glm4_moe_lite": "Glm4MoeLite",
        "glm_moe_dsa": "GlmMoeDsa",
        "llama": "Llama",
        "qwen3_moe": "Qwen3Moe",
    }[kind]
    model = getattr(transformers, f"{cls}ForCausalLM")._from_config(
        getattr(transformers, f"{cls}Config")(**config), attn_implementation="eager"
    )
    return _refilled(model, seed)


def _refilled(model: Any, seed: int) -> Any:
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if "inv_freq" not in name and not name.endswith(_KEPT):
            _refill(name, tensor.data, generator)
    return model.eval()


def _refill(name: str, tensor: torch.Tensor, generator: torch.Generator) -> None:
    """N(0, 1/fan_in) for matrices, 1 + 0.1 N for norms, 0.1 N for biases, in place; queries twice that, so that
    the next token depends on more than the last few."""
    tensor.normal_(generator=generator)
    if tensor.dim() >= 2:
        tensor.mul_(tensor.shape[-1] ** -0.5)
    else:
        tensor.mul_(0.1).add_(0.0 if "bias" in name else 1.0)
    if name.endswith(("q_proj.weight", "q_b_proj.weight", "q_norm.weight")):
        tensor.mul_(2.0)


@dataclass(frozen=True, slots=True)
class Reference:
    """Greedy tokens after `prompt`, the logits that gave them, and how clear the choices were."""

    prompt: tuple[int, ...]
    token_ids: tuple[int, ...]
    logits: torch.Tensor
    """[len(token_ids), vocab], fp32."""
    margin: float
    """Least gap between the best and the second logit."""
    router_gap: float
    """Least gap of scores between chosen and rejected experts or groups, prompt included; inf without MoE."""
    index_gap: float
    """Least gap of an indexer's scores between chosen and rejected tokens, prompt included; inf without one."""

    @property
    def clear(self) -> bool:
        """Whether no rounding error can change a token."""
        gaps = self.router_gap > CLEAR_ROUTER_GAP and self.index_gap > CLEAR_INDEX_GAP
        return self.margin > CLEAR_MARGIN and gaps


def reference_greedy(folder: Path, prompt: Sequence[int], num_tokens: int) -> Reference:
    """`num_tokens` greedy tokens after `prompt`, by transformers; ends of sequence are ignored."""
    model = load_reference(folder)
    gaps, indexers = _RouterGaps(model), IndexerWatch(model)
    ids = torch.tensor([list(prompt)])
    cache, tokens, logits = None, [], []
    with torch.inference_mode(), gaps, indexers:
        for _ in range(num_tokens):
            output = model(input_ids=ids, cache=cache, use_cache=True)
            cache = output.cache
            logits.append(output.logits[0, -1].float())
            tokens.append(int(logits[-1].argmax()))
            ids = torch.tensor([[tokens[-1]]])
    stacked = torch.stack(logits)
    best = stacked.topk(2).values
    margin = float((best[:, 0] - best[:, 1]).min())
    return Reference(tuple(prompt), tuple(tokens), stacked, margin, gaps.least, indexers.least_gap)


def reference_logits(folder: Path, token_ids: Sequence[int]) -> torch.Tensor:
    """[len(token_ids), vocab] fp32: the logits after each of the given tokens, teacher-forced in one pass."""
    with torch.inference_mode():
        return load_reference(folder)(input_ids=torch.tensor([list(token_ids)])).logits[0].float()


def reference_selections(folder: Path, token_ids: Sequence[int]) -> dict[int, list[set[int]]]:
    """By layer with an indexer: the positions that each of the given tokens attends over, teacher-forced."""
    watch = IndexerWatch(model := load_reference(folder))
    with torch.inference_mode(), watch:
        model(input_ids=torch.tensor([list(token_ids)]))
    return {layer: [chosen_set(row, watch.top_k) for row in scores] for layer, scores in watch.seen}


def chosen_set(scores: torch.Tensor, top_k: int) -> set[int]:
    """Positions of the `top_k` best finite scores."""
    return {int(i) for i in scores.topk(min(top_k, len(scores))).indices if scores[i].isfinite()}


def clear_reference(folder: Path, length: int, num_tokens: int, *, seed: int = 0) -> Reference:
    """The first random prompt of `length` tokens whose greedy continuation is clear (see `Reference.clear`)."""
    for attempt in range(20):
        prompt = random_prompt(length, seed=1000 * seed + attempt)
        found = reference_greedy(folder, prompt, num_tokens)
        if found.clear:
            return found
    raise AssertionError(f"no clear continuation of {num_tokens} tokens after {length} in {folder.name}")


def random_prompt(length: int, *, seed: int = 0, vocab_size: int = VOCAB_SIZE) -> tuple[int, ...]:
    """`length` token ids, none of them below 3 (so no end of sequence)."""
    draw = random.Random(seed)
    return tuple(draw.randrange(3, vocab_size) for _ in range(length))


@lru_cache(maxsize=8)
def load_reference(folder: Path) -> Any:
    """The transformers model of a folder, fp32, eager attention and experts."""
    import transformers

    torch.set_num_threads(1)
    transformers.logging.disable_progress_bar()
    nested = (folder / "config.json").read_text(encoding="utf-8").count('"vision_config"')
    auto = transformers.AutoModelForImageTextToText if nested else transformers.AutoModelForCausalLM
    return auto.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
    ).eval()


class IndexerWatch:
    """Watches the indexers of a transformers model while it is entered: their scores as they choose."""

    def __init__(self, model: Any) -> None:
        self.seen: list[tuple[int, torch.Tensor]] = []
        """(layer, scores [rows, tokens], masked ones below every number), in order of calls."""
        self.top_k = 0
        self._indexers = [module for name, module in model.named_modules() if name.endswith("indexer")]
        self._handles: list[Any] = []

    @property
    def least_gap(self) -> float:
        """Between the worst chosen and the best rejected token of any row."""
        gaps = [float("inf")]
        for _, scores in self.seen:
            if scores.shape[1] > self.top_k:
                best = scores.topk(self.top_k + 1).values
                gap = best[:, -2] - best[:, -1]
                gaps += gap[best[:, -1] > HIDDEN].tolist()
        return min(gaps)

    def __enter__(self) -> None:
        for indexer in self._indexers:
            self.top_k = indexer.index_topk
            topk = _TopK(self.seen, indexer.layer_idx)
            self._handles.append(indexer.register_forward_pre_hook(partial(_enter, topk)))
            self._handles.append(indexer.register_forward_hook(partial(_leave, topk)))

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()


HIDDEN = -1e30
"""Scores below are those of masked tokens."""


class _TopK(TorchFunctionMode):
    """Sees what `topk` is called with."""

    def __init__(self, seen: list[tuple[int, torch.Tensor]], layer: int) -> None:
        super().__init__()
        self._seen, self._layer = seen, layer

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.topk:
            scores = args[0][0].float()
            self._seen.append((self._layer, scores.masked_fill(scores < HIDDEN, float("-inf"))))
        return func(*args, **(kwargs or {}))


def _enter(mode: _TopK, *_: object) -> None:
    mode.__enter__()


def _leave(mode: _TopK, *_: object) -> None:
    mode.__exit__(None, None, None)


class _RouterGaps:
    """Watches the routers of a model while it is entered; `least` is the smallest gap seen."""

    def __init__(self, model: Any) -> None:
        self.least = float("inf")
        self._routers = [module for name, module in model.named_modules() if name.endswith("mlp.gate")]
        self._handles: list[Any] = []

    def __enter__(self) -> None:
        self._handles = [router.register_forward_hook(self._see) for router in self._routers]

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _see(self, router: Any, _inputs: Any, output: Any) -> None:
        scores = output[0].float()
        if hasattr(router, "e_score_correction_bias"):
            scores = scores.sigmoid() + router.e_score_correction_bias
            if router.topk_group < router.num_group:
                scores = self._choose_groups(scores, router.num_group, router.topk_group)
        else:
            scores = scores.softmax(-1)
        self._note(scores, router.top_k)

    def _choose_groups(self, scores: torch.Tensor, num_groups: int, keep: int) -> torch.Tensor:
        """`scores` with the groups that are not kept at -inf."""
        grouped = scores.view(len(scores), num_groups, -1)
        strength = grouped.topk(2, dim=-1).values.sum(-1)
        self._note(strength, keep)
        kept = strength >= strength.topk(keep).values[:, -1:]
        return grouped.masked_fill(~kept[..., None], float("-inf")).view_as(scores)

    def _note(self, scores: torch.Tensor, keep: int) -> None:
        if keep < scores.shape[-1]:
            best = scores.topk(keep + 1).values
            self.least = min(self.least, float((best[:, -2] - best[:, -1]).min()))
