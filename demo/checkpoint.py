"""Writing the trained model as a `deepseek_v3` folder, and proving that transformers reads the same model."""

import json
import os
import re
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from demo.model import LanguageModel, Shape
from demo.tokenizer import BOS_ID, EOS_ID


def export_weights(model: LanguageModel) -> dict[str, Tensor]:
    """The checkpoint's tensors under transformers' names: bf16, the router's correction bias fp32."""
    tensors: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        if name.endswith("e_score_correction_bias"):
            tensors[name] = tensor.float().clone()
        elif name.endswith("experts.gate_up"):
            for expert, matrix in enumerate(tensor):
                gate, up = matrix.bfloat16().chunk(2)
                prefix = f"{name.removesuffix('gate_up')}{expert}."
                tensors[prefix + "gate_proj.weight"] = gate.contiguous()
                tensors[prefix + "up_proj.weight"] = up.contiguous()
        elif name.endswith("experts.down"):
            for expert, matrix in enumerate(tensor):
                tensors[f"{name.removesuffix('down')}{expert}.down_proj.weight"] = matrix.bfloat16().clone()
        else:
            tensors[name] = tensor.bfloat16().clone()
    return tensors


def rounded(model: LanguageModel) -> LanguageModel:
    """A copy that computes in fp32 with the weights as the checkpoint stores them."""
    copy = LanguageModel(model.shape, dtype=torch.float32)
    state = model.state_dict()
    kept = {name for name in state if name.endswith("e_score_correction_bias")}
    copy.load_state_dict({k: v if k in kept else v.bfloat16().float() for k, v in state.items()})
    return copy.eval()


def model_config(shape: Shape) -> dict[str, object]:
    """config.json; rope and dtype are given in transformers' present and former spelling."""
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "moe_intermediate_size": shape.moe_intermediate_size,
        "num_hidden_layers": shape.num_hidden_layers,
        "num_nextn_predict_layers": 0,
        "num_attention_heads": shape.num_attention_heads,
        "num_key_value_heads": shape.num_attention_heads,
        "q_lora_rank": shape.q_lora_rank,
        "kv_lora_rank": shape.kv_lora_rank,
        "qk_nope_head_dim": shape.qk_nope_head_dim,
        "qk_rope_head_dim": shape.qk_rope_head_dim,
        "v_head_dim": shape.v_head_dim,
        "first_k_dense_replace": shape.first_k_dense_replace,
        "moe_layer_freq": 1,
        "n_routed_experts": shape.n_routed_experts,
        "n_shared_experts": 1,
        "num_experts_per_tok": shape.num_experts_per_tok,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
        "routed_scaling_factor": shape.routed_scaling_factor,
        "hidden_act": "silu",
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_theta": shape.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rope_theta},
        "rope_interleave": True,
        "max_position_embeddings": shape.max_position_embeddings,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": False,
        "initializer_range": 0.02,
        "use_cache": True,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "pad_token_id": None,
        "torch_dtype": "bfloat16",
    }


def save_checkpoint(model: LanguageModel, folder: Path) -> int:
    """Write config, generation config and two shards with their index; returns the tensors' bytes.

    Every file is replaced atomically, so a reader of `folder` may meet two versions but no torn file.
    """
    tensors = export_weights(model)
    half = (model.shape.num_hidden_layers + 1) // 2
    shards: list[dict[str, Tensor]] = [{}, {}]
    for name, tensor in tensors.items():
        layer = re.match(r"model\.layers\.(\d+)\.", name)
        first = int(layer[1]) < half if layer else "embed_tokens" in name
        shards[0 if first else 1][name] = tensor
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        save_file(shard, folder / f"{file}.part", metadata={"format": "pt"})
        (folder / f"{file}.part").chmod(0o644)  # safetensors writes for the owner alone
        os.replace(folder / f"{file}.part", folder / file)
        weight_map |= dict.fromkeys(shard, file)
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(weight_map.items()))}
    generation = {"bos_token_id": BOS_ID, "eos_token_id": EOS_ID, "do_sample": True, "temperature": 0.8}
    write_json(folder / "model.safetensors.index.json", index)
    write_json(folder / "config.json", model_config(model.shape))
    write_json(folder / "generation_config.json", generation)
    return size


def write_json(path: Path, value: object) -> None:
    """Replace `path` atomically by `value`."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(value, indent=2) + "\n")
    os.replace(part, path)


@torch.no_grad()
def verify(model: LanguageModel, folder: Path, ids: Tensor) -> dict[str, float]:
    """Differences of transformers' logits on `folder`, in fp32 and bf16, from `rounded(model)` in fp32.

    `ids` [B, T]. Raises ValueError above 1e-4 in fp32 or, on average in bf16, 1e-2 of the largest logit.
    """
    from transformers import AutoModelForCausalLM

    expected = rounded(model)(ids)
    differences = {}
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        reference = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
        gap = (reference(ids).logits.float() - expected).abs()
        differences[f"{name}_max"], differences[f"{name}_mean"] = gap.max().item(), gap.mean().item()
    if differences["fp32_max"] > 1e-4 or differences["bf16_mean"] > 1e-2 * expected.abs().max().item():
        raise ValueError(f"transformers computes other logits than the training model: {differences}")
    return differences


def samples(folder: Path, prompts: list[str], *, num_tokens: int, temperature: float, seed: int) -> list[str]:
    """Prompts continued by transformers from `folder`; temperature 0 is greedy."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    torch.manual_seed(seed)
    how = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
    texts = []
    for prompt in prompts:
        inputs = tokenizer(prompt, return_tensors="pt")
        output = model.generate(inputs["input_ids"], max_new_tokens=num_tokens, **how)
        texts.append(tokenizer.decode(output[0], skip_special_tokens=True))
    return texts
