"""Shapes of config.json as they are met: published models (from their config files) and known oddities."""

from __future__ import annotations

from typing import Any

Config = dict[str, Any]

_DEEPSEEK_V3_SIZES: Config = {
    "model_type": "deepseek_v3",
    "architectures": ["DeepseekV3ForCausalLM"],
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3,
    "n_group": 8,
    "topk_group": 4,
    "routed_scaling_factor": 2.5,
    "norm_topk_prob": True,
    "rms_norm_eps": 1e-6,
    "vocab_size": 129280,
    "max_position_embeddings": 163840,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
_V3_YARN: Config = {
    "beta_fast": 32,
    "beta_slow": 1,
    "factor": 40,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 4096,
}

DEEPSEEK_V3: Config = {
    **_DEEPSEEK_V3_SIZES,
    "aux_loss_alpha": 0.001,
    "ep_size": 1,
    "moe_layer_freq": 1,
    "num_nextn_predict_layers": 1,
    "pretraining_tp": 1,
    "quantization_config": {"fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]},
    "rope_scaling": {**_V3_YARN, "type": "yarn"},
    "rope_theta": 10000,
    "scoring_func": "sigmoid",
    "seq_aux": True,
    "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16",
}
DEEPSEEK_V3_TRANSFORMERS_5: Config = {
    **_DEEPSEEK_V3_SIZES,
    "dtype": "bfloat16",
    "num_nextn_predict_layers": 1,
    "rope_interleave": True,
    "rope_parameters": {**_V3_YARN, "rope_type": "yarn", "rope_theta": 10000.0},
    "transformers_version": "5.0.0",
}
KIMI_K2: Config = {
    **_DEEPSEEK_V3_SIZES,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "n_routed_experts": 384,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 2.827,
    "vocab_size": 163840,
    "max_position_embeddings": 131072,
    "rope_theta": 50000.0,
    "rope_scaling": {**_V3_YARN, "type": "yarn", "factor": 32.0, "beta_fast": 1.0, "beta_slow": 1.0},
    "eos_token_id": 163585,
    "torch_dtype": "bfloat16",
}
MOONLIGHT: Config = {
    "model_type": "deepseek_v3",
    "architectures": ["DeepseekV3ForCausalLM"],
    "hidden_size": 2048,
    "intermediate_size": 11264,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "q_lora_rank": None,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 1408,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "routed_scaling_factor": 2.446,
    "norm_topk_prob": True,
    "rms_norm_eps": 1e-5,
    "rope_theta": 50000.0,
    "vocab_size": 163840,
    "max_position_embeddings": 8192,
    "bos_token_id": 163584,
    "eos_token_id": 163585,
    "torch_dtype": "bfloat16",
}
GLM_4_7_FLASH: Config = {
    "model_type": "glm4_moe_lite",
    "architectures": ["Glm4MoeLiteForCausalLM"],
    "attention_bias": False,
    "hidden_size": 2048,
    "intermediate_size": 10240,
    "num_hidden_layers": 47,
    "num_attention_heads": 20,
    "num_key_value_heads": 20,
    "q_lora_rank": 768,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64,
    "v_head_dim": 256,
    "n_routed_experts": 64,
    "n_shared_experts": 1,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 1536,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "routed_scaling_factor": 1.8,
    "norm_topk_prob": True,
    "num_nextn_predict_layers": 1,
    "partial_rotary_factor": 1.0,
    "rms_norm_eps": 1e-5,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "vocab_size": 154880,
    "max_position_embeddings": 202752,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "eos_token_id": [154820, 154827, 154829],
    "pad_token_id": 154820,
    "dtype": "bfloat16",
}
GLM_4_7_FLASH_TRANSFORMERS_5: Config = {
    **{
        k: v
        for k, v in GLM_4_7_FLASH.items()
        if k not in ("rope_theta", "rope_scaling", "first_k_dense_replace")
    },
    "mlp_layer_types": ["dense"] + ["sparse"] * 46,
    "rope_parameters": {"partial_rotary_factor": 1.0, "rope_theta": 1000000, "rope_type": "default"},
}
LLAMA_1_7B: Config = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "max_sequence_length": 2048,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-6,
    "torch_dtype": "float16",
    "vocab_size": 32000,
}
LLAMA_2_70B: Config = {
    **LLAMA_1_7B,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "max_position_embeddings": 4096,
    "num_attention_heads": 64,
    "num_hidden_layers": 80,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-5,
    "rope_scaling": None,
    "tie_word_embeddings": False,
}
LLAMA_3_8B: Config = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 8192,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-5,
    "rope_scaling": None,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}
_LLAMA_3_ROPE: Config = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
LLAMA_3_1_8B: Config = {
    **LLAMA_3_8B,
    "eos_token_id": [128001, 128008, 128009],
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "rope_scaling": _LLAMA_3_ROPE,
}
LLAMA_3_1_405B: Config = {
    **LLAMA_3_1_8B,
    "hidden_size": 16384,
    "intermediate_size": 53248,
    "num_attention_heads": 128,
    "num_hidden_layers": 126,
}
LLAMA_3_2_1B: Config = {
    **LLAMA_3_1_8B,
    "head_dim": 64,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "rope_scaling": {**_LLAMA_3_ROPE, "factor": 32.0},
    "tie_word_embeddings": True,
}
LLAMA_3_1_TRANSFORMERS_5: Config = {
    **{k: v for k, v in LLAMA_3_1_8B.items() if k not in ("rope_theta", "rope_scaling", "torch_dtype")},
    "dtype": "bfloat16",
    "head_dim": 128,
    "rope_parameters": {**_LLAMA_3_ROPE, "rope_theta": 500000.0},
}
LLAMA_HEAD_DIM_NULL: Config = {**LLAMA_3_8B, "head_dim": None, "num_key_value_heads": None}
LLAMA_LINEAR: Config = {**LLAMA_2_70B, "rope_scaling": {"factor": 4.0, "type": "linear"}}
LLAMA_DYNAMIC: Config = {**LLAMA_2_70B, "rope_scaling": {"factor": 2.0, "type": "dynamic"}}
LLAMA_YARN: Config = {
    **LLAMA_1_7B,
    "max_position_embeddings": 65536,
    "rope_scaling": {
        "factor": 16.0,
        "finetuned": True,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
}
LLAMA_BIAS: Config = {**LLAMA_1_7B, "attention_bias": True, "max_position_embeddings": 2048}
LLAMA_MROPE: Config = {
    **LLAMA_3_8B,
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
}
LLAVA: Config = {
    "model_type": "llava",
    "architectures": ["LlavaForConditionalGeneration"],
    "image_token_index": 128256,
    "text_config": {
        **{k: v for k, v in LLAMA_3_8B.items() if k not in ("tie_word_embeddings", "architectures")},
        "vocab_size": 128320,
    },
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "vision_config": {"model_type": "clip_vision_model", "hidden_size": 1024, "num_attention_heads": 16},
}
QWEN3_30B_A3B: Config = {
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "attention_bias": False,
    "bos_token_id": 151643,
    "decoder_sparse_step": 1,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "max_position_embeddings": 40960,
    "max_window_layers": 48,
    "mlp_only_layers": [],
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.001,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "vocab_size": 151936,
}
QWEN3_235B_A22B: Config = {
    **QWEN3_30B_A3B,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "max_window_layers": 94,
    "moe_intermediate_size": 1536,
    "num_attention_heads": 64,
    "num_hidden_layers": 94,
}
QWEN3_YARN: Config = {
    **QWEN3_30B_A3B,
    "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
}
QWEN3_YARN_NO_FACTOR: Config = {
    **QWEN3_30B_A3B,
    "max_position_embeddings": 131072,
    "rope_scaling": {
        "type": "yarn",
        "rope_type": "yarn",
        "factor": None,
        "original_max_position_embeddings": 32768,
    },
}
QWEN3_SOME_DENSE: Config = {**QWEN3_30B_A3B, "decoder_sparse_step": 2, "mlp_only_layers": [1, 3]}
QWEN3_TRANSFORMERS_5: Config = {
    **{k: v for k, v in QWEN3_30B_A3B.items() if k not in ("rope_theta", "rope_scaling", "num_experts")},
    "layer_types": ["full_attention"] * 48,
    "num_local_experts": 128,
    "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
}

SHAPES: dict[str, Config] = {
    name: shape for name, shape in globals().items() if name.isupper() and not name.startswith("_")
}
"""All of the above by name."""
