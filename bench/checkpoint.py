"""Write the bench checkpoint: python -m bench.checkpoint DIR

A random deepseek_v3 of about 170 M parameters with a byte-level tokenizer, in the form that transformers and vLLM
open too, so that peers can serve the same folder.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from splash.model.synthetic import write_random
from splash.spec.model import ModelSpec
from splash.spec.tensors import num_params

BOS, EOS = "<|bos|>", "<|eos|>"
BOS_ID, EOS_ID = 0, 1
VOCAB_SIZE = 320
"""256 bytes, two special tokens, and reserved ones up to a multiple of 64."""

CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 1024,
    "intermediate_size": 4608,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "q_lora_rank": 512,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "n_routed_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 272,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "num_nextn_predict_layers": 0,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 32768,
    "rope_theta": 10000.0,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "rope_interleave": True,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "tie_word_embeddings": False,
    "initializer_range": 0.02,
    "aux_loss_alpha": 0.001,
    "seq_aux": True,
    "ep_size": 1,
    "pretraining_tp": 1,
    "use_cache": True,
    "bos_token_id": BOS_ID,
    "eos_token_id": EOS_ID,
}
"""config.json but for the type of the weights; the dense layer is as large as a layer's experts together."""


def write_checkpoint(folder: Path, *, dtype: str = "float32", seed: int = 0, **changes: Any) -> ModelSpec:
    """Write config, weights, tokenizer and generation config into `folder`, and return the model.

    `changes` go into the config under transformers' names.
    """
    spec = write_random(folder, {**CONFIG, **changes, "torch_dtype": dtype}, seed=seed)
    _write_json(folder / "generation_config.json", {"bos_token_id": BOS_ID, "eos_token_id": EOS_ID})
    _write_tokenizer(folder)
    return spec


def _write_tokenizer(folder: Path) -> None:
    """A tokenizer whose tokens are the bytes, after the special ones."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    bytes_ = sorted(pre_tokenizers.ByteLevel.alphabet())
    reserved = [f"<|reserved_{i}|>" for i in range(VOCAB_SIZE - len(bytes_) - 2)]
    vocab = {token: i for i, token in enumerate([BOS, EOS, *bytes_, *reserved])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, BOS_ID)]
    )
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in (BOS, EOS, *reserved)])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": EOS,
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONFIG["max_position_embeddings"],
        "chat_template": "{{ bos_token }}{% for message in messages %}{{ message['content'] }}\n{% endfor %}",
    }
    _write_json(folder / "tokenizer_config.json", config)


def _write_json(file: Path, value: dict[str, Any]) -> None:
    file.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


@click.command(help=__doc__)
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option("--dtype", type=click.Choice(["float32", "bfloat16"]), default="float32", show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
def main(folder: Path, dtype: str, seed: int) -> None:
    spec = write_checkpoint(folder, dtype=dtype, seed=seed)
    click.echo(f"{folder}: {spec.model_type}, {num_params(spec) / 1e6:.1f} M parameters, {dtype}")


if __name__ == "__main__":
    main()
