"""The config.json of public models and heads, trimmed to what differs, and how each is accounted for.

Fields and values as published; sources beside them.
"""

from __future__ import annotations

from typing import Any

COMMON = {"bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "initializer_range": 0.02, "use_cache": True}

# meta-llama, lmsys, TinyLlama, HuggingFaceTB, unsloth
LLAMA = COMMON | {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-05,
    "vocab_size": 32000,
    "torch_dtype": "float16",
    "transformers_version": "4.31.0",
    "tie_word_embeddings": False,
}
LLAMA_2 = LLAMA | {"_name_or_path": "meta-llama/Llama-2-7b-hf", "num_key_value_heads": 32, "pretraining_tp": 1,
                   "rope_scaling": None}  # fmt: skip
ROPE_31 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
           "original_max_position_embeddings": 8192}  # fmt: skip
LLAMA_31 = LLAMA_2 | {
    "attention_bias": False, "attention_dropout": 0.0, "mlp_bias": False, "num_key_value_heads": 8,
    "rope_scaling": ROPE_31, "rope_theta": 500000.0, "torch_dtype": "bfloat16", "vocab_size": 128256,
    "eos_token_id": [128001, 128008, 128009], "max_position_embeddings": 131072,
}  # fmt: skip
TINY_LLAMA = LLAMA_2 | {"attention_bias": False, "num_key_value_heads": 4, "rope_theta": 10000.0}
VICUNA_13 = {name: value for name, value in LLAMA.items() if name != "max_position_embeddings"} | {
    "max_sequence_length": 2048, "pad_token_id": 0, "rms_norm_eps": 1e-06
}  # fmt: skip
SMOL = LLAMA_31 | {
    "is_llama_config": True, "rope_interleaved": False, "rope_scaling": None, "tie_word_embeddings": True,
    "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}}, "num_attention_heads": 9, "hidden_size": 576,
}  # fmt: skip
UNSLOTH = LLAMA_31 | {"unsloth_fixed": True, "pad_token_id": 128004, "head_dim": 128}

# Qwen
QWEN_3 = COMMON | {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": False, "attention_dropout": 0.0,
    "head_dim": 128, "hidden_size": 4096, "intermediate_size": 12288, "max_position_embeddings": 40960,
    "max_window_layers": 36, "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.51.0",
    "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}

# zai-org
GLM = {
    "architectures": ["Glm4MoeLiteForCausalLM"], "model_type": "glm4_moe_lite", "attention_bias": False,
    "attention_dropout": 0.0, "pad_token_id": 154820, "eos_token_id": [154820, 154827, 154829], "hidden_act": "silu",
    "hidden_size": 2048, "intermediate_size": 10240, "max_position_embeddings": 202752, "moe_intermediate_size": 1536,
    "topk_method": "noaux_tc", "norm_topk_prob": True, "num_attention_heads": 20, "n_group": 1, "topk_group": 1,
    "n_routed_experts": 64, "n_shared_experts": 1, "routed_scaling_factor": 1.8, "num_experts_per_tok": 4,
    "first_k_dense_replace": 1, "num_hidden_layers": 47, "num_key_value_heads": 20, "num_nextn_predict_layers": 1,
    "partial_rotary_factor": 1.0, "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 1000000,
    "tie_word_embeddings": False, "dtype": "bfloat16", "transformers_version": "5.0.0", "q_lora_rank": 768,
    "kv_lora_rank": 512, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256, "vocab_size": 154880,
}  # fmt: skip

TARGETS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "Llama 2": (LLAMA_2, ("rope_theta",)),
    "Llama 3.1": (LLAMA_31, ()),
    "Llama 3.2": (LLAMA_31 | {"head_dim": 64, "tie_word_embeddings": True}, ()),
    "Llama 3.3": (LLAMA_31 | {"num_hidden_layers": 80}, ()),
    "TinyLlama": (TINY_LLAMA, ()),
    "Vicuna": (VICUNA_13, ("max_position_embeddings", "rope_theta")),
    "SmolLM2": (SMOL, ()),
    "unsloth's Llama": (UNSLOTH, ()),
    "Qwen3": (QWEN_3, ()),
    "Qwen3 0.6B": (QWEN_3 | {"tie_word_embeddings": True}, ()),
    "Qwen3 with YaRN": (QWEN_3 | {"rope_scaling": YARN}, ()),
    "GLM-4.7-Flash": (GLM, ()),
}
"""Name -> fields, and those that the file leaves out and that are told."""

ONE_LAYER = {"num_hidden_layers": 1}
# SafeAILab/EAGLE, its training configurations
EAGLE_VICUNA = VICUNA_13 | ONE_LAYER | {"num_key_value_heads": 13}
EAGLE_LLAMA_3 = LLAMA_31 | ONE_LAYER | {"bias": False, "rope_scaling": None}
EAGLE3_LLAMA_3 = VICUNA_13 | ONE_LAYER | {"draft_vocab_size": 32000, "max_position_embeddings": 2048}
# sgl-project/SpecForge, Tencent/AngelSlim, NVIDIA/Model-Optimizer
EAGLE3_QWEN = QWEN_3 | ONE_LAYER | {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama",
                                    "draft_vocab_size": 32000}  # fmt: skip
EAGLE3_AUX = EAGLE3_QWEN | {
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 17, 33], "use_aux_hidden_state": True}
}
EAGLE3_ANGEL = EAGLE3_QWEN | {"architectures": ["Eagle3LlamaForCausalLM"], "target_model_type": "qwen3"}
EAGLE3_OF_MOE = EAGLE3_ANGEL | {"decoder_sparse_step": 1, "output_router_logits": False, "router_aux_loss_coef": 0.001}
EAGLE3_1 = EAGLE3_QWEN | {"fc_norm": True, "norm_output": True}
EAGLE3_NVIDIA = EAGLE3_QWEN | {
    "eagle_config": {
        "eagle_aux_hidden_state_layer_ids": [1, 17, 33], "use_aux_hidden_state": True, "next_layer_regular": True,
        "use_input_layernorm_in_first_layer": True, "use_last_layernorm": True, "use_mtp_layernorm": False,
        "parallel_draft_step": 1, "parallel_draft_heads_num_layers": 1,
    }
}  # fmt: skip
PEAGLE = EAGLE3_QWEN | {"architectures": ["PEagleDraftModel"], "num_hidden_layers": 4, "ptd_token_id": 7}
# vllm-project/speculators, RedHatAI
LAYER = LLAMA_31 | ONE_LAYER
DUMPED = dict.fromkeys(("bad_words_ids", "cross_attention_hidden_size", "prefix", "sep_token_id")) | {
    "add_cross_attention": False, "chunk_size_feed_forward": 0, "diversity_penalty": 0.0, "do_sample": False,
    "early_stopping": False, "encoder_no_repeat_ngram_size": 0, "id2label": {"0": "LABEL_0"}, "is_decoder": False,
    "is_encoder_decoder": False, "label2id": {"LABEL_0": 0}, "length_penalty": 1.0, "max_length": 20, "min_length": 0,
    "no_repeat_ngram_size": 0, "num_beam_groups": 1, "num_beams": 1, "num_return_sequences": 1, "pruned_heads": {},
    "output_attentions": False, "output_hidden_states": False, "output_scores": False, "remove_invalid_values": False,
    "repetition_penalty": 1.0, "return_dict": True, "return_dict_in_generate": False, "temperature": 1.0,
    "tf_legacy_loss": False, "tie_encoder_decoder": False, "top_k": 50, "top_p": 1.0, "torchscript": False,
    "typical_p": 1.0, "use_bfloat16": False, "_attn_implementation_autoset": True,
}  # fmt: skip
"""What transformers 4 wrote of every model, wherever all fields were written."""
SPECULATORS = {
    "architectures": ["Eagle3Speculator"], "auto_map": {"": "config.SpeculatorModelConfig"},
    "draft_vocab_size": 32000, "norm_before_residual": True, "norm_before_fc": False,
    "speculators_config": {
        "algorithm": "eagle3", "default_proposal_method": "greedy",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3, "accept_tolerance": 0.0}],
        "verifier": {"name_or_path": "meta-llama/Llama-3.1-8B-Instruct", "architectures": ["LlamaForCausalLM"]},
    },
    "speculators_model_type": "eagle3", "speculators_version": "0.1.0", "target_hidden_size": None,
    "tie_word_embeddings": False, "torch_dtype": "float32", "transformer_layer_config": LAYER | DUMPED,
    "transformers_version": "4.53.0", "embed_requires_grad": False, "has_no_defaults_at_init": False,
}  # fmt: skip
# z-lab, Tencent/AngelSlim
DFLASH = QWEN_3 | {
    "architectures": ["DFlashDraftModel"], "auto_map": {"AutoModel": "dflash.DFlashDraftModel"}, "block_size": 16,
    "dflash_config": {"mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33]},
    "layer_types": ["full_attention"] * 5, "num_hidden_layers": 5, "max_window_layers": 5, "num_target_layers": 36,
}  # fmt: skip
DFLASH_ANGEL = DFLASH | {"architectures": ["QwenDFlashDraftModel"], "num_anchors": 512, "loss_decay_gamma": 7.0,
                         "attention_backend": "flex_attention"}  # fmt: skip

# sgl-project/SpecForge
DSPARK = DFLASH | {
    "architectures": ["DSparkDraftModel"], "auto_map": {"AutoModel": "dspark.DSparkDraftModel"}, "block_size": 7,
    "dflash_config": DFLASH["dflash_config"] | {
        "attention_mode": "gqa", "confidence_head_alpha": 1.0, "confidence_head_with_markov": True,
        "enable_confidence_head": True, "markov_head_type": "vanilla", "markov_rank": 256, "projector_type": "dspark",
    },
}  # fmt: skip
# deepseek-ai/DeepSpec
DEEPSPEC = QWEN_3 | {
    "architectures": ["Qwen3DSparkModel"], "block_size": 7, "confidence_head_with_markov": True,
    "enable_confidence_head": True, "layer_types": ["full_attention"] * 5, "markov_head_type": "vanilla",
    "markov_rank": 256, "mask_token_id": 151669, "num_anchors": 512, "num_hidden_layers": 5, "num_target_layers": 36,
    "target_layer_ids": [1, 9, 17, 25, 33],
}  # fmt: skip
# vllm-project/speculators
DSPARK_SPECULATORS = {
    "architectures": ["DSparkSpeculator"], "aux_hidden_state_layer_ids": [2, 10, 18, 26, 34], "block_size": 8,
    "confidence_head_with_markov": True, "draft_vocab_size": 32000, "enable_confidence_head": True,
    "markov_head_type": "vanilla", "markov_rank": 256, "mask_token_id": 151669, "sample_from_anchor": True,
    "sliding_window_non_causal": False, "speculators_config": SPECULATORS["speculators_config"] | {
        "algorithm": "dspark"},
    "speculators_model_type": "dspark", "transformer_layer_config": QWEN_3 | {"num_hidden_layers": 5},
}  # fmt: skip
# z-lab
DFLASH2 = {name: value for name, value in DFLASH.items() if name not in ("block_size", "use_sliding_window")} | {
    "architectures": ["DFlash2DraftModel"], "is_causal": False, "layer_types": ["sliding_attention"] * 5,
    "sliding_window": 2048, "dflash_config": DFLASH["dflash_config"] | {
        "block_size": 8, "conv_group_size": 16, "conv_kernel_size": 2, "selector_rank": 256, "selector_top_k": 16},
}  # fmt: skip
DFLASH2_SPECULATORS = DSPARK_SPECULATORS | {
    "architectures": ["DFlash2DraftModel"], "conv_group_size": 16, "conv_kernel_size": 2, "draft_vocab_size": 151936,
    "sample_from_anchor": False, "selector_rank": 256, "selector_top_k": 16, "sliding_window_non_causal": True,
    "speculators_config": SPECULATORS["speculators_config"] | {"algorithm": "dflash2"},
    "speculators_model_type": "dflash2",
}  # fmt: skip
for _name in ("markov_rank", "markov_head_type", "enable_confidence_head", "confidence_head_with_markov"):
    del DFLASH2_SPECULATORS[_name]

HEADS: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "EAGLE of Vicuna": ("eagle", EAGLE_VICUNA, ("max_position_embeddings", "rope_theta")),
    "EAGLE of Llama 3": ("eagle", EAGLE_LLAMA_3, ()),
    "EAGLE-3 of Llama 3": ("eagle3", EAGLE3_LLAMA_3, ("rope_theta",)),
    "EAGLE-3 of SpecForge": ("eagle3", EAGLE3_QWEN, ()),
    "EAGLE-3 with auxiliary ids": ("eagle3", EAGLE3_AUX, ()),
    "EAGLE-3 of AngelSlim": ("eagle3", EAGLE3_ANGEL, ()),
    "EAGLE-3 of a mixture of experts": ("eagle3", EAGLE3_OF_MOE, ()),
    "EAGLE-3.1": ("eagle3", EAGLE3_1, ()),
    "EAGLE-3 of Model-Optimizer": ("eagle3", EAGLE3_NVIDIA, ()),
    "EAGLE-3 of speculators": ("eagle3", SPECULATORS, ()),
    "P-EAGLE of SpecForge": ("peagle", PEAGLE, ()),
    "DFlash of z-lab": ("dflash", DFLASH, ()),
    "DFlash of AngelSlim": ("dflash", DFLASH_ANGEL, ()),
    "DSpark of SpecForge": ("dspark", DSPARK, ()),
    "DSpark of DeepSpec": ("dspark", DEEPSPEC, ()),
    "DFlash of DeepSpec": ("dspark", DEEPSPEC | {"markov_rank": 0, "enable_confidence_head": False}, ()),
    "DSpark of speculators": ("dspark", DSPARK_SPECULATORS, ()),
    "DFlash2 of z-lab": ("dflash2", DFLASH2, ()),
    "DFlash2 of speculators": ("dflash2", DFLASH2_SPECULATORS, ()),
}
"""Name -> kind of drafter, fields, and those that the file leaves out and that are told."""

_WINDOWS = ["sliding_attention"] * 4 + ["full_attention"]
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "DFlash with windows": (
        "dflash",
        DFLASH | {"layer_types": _WINDOWS, "sliding_window": 2048, "use_sliding_window": True},
        "would change what the layers attend to",
    ),
    "DSpark of SpecForge": (
        "dflash", DSPARK, r"'DSparkDraftModel'.*markov_rank = 256 in config\.json, of a DSpark head; .*drafter=dspark"),
    "DSpark of DeepSpec": (
        "dflash",
        DEEPSPEC | {"markov_rank": 0, "enable_confidence_head": False},
        r"architectures = \['Qwen3DSparkModel'\] in config\.json, which names another kind of head; .*drafter=dspark",
    ),
    "DSpark of speculators": (
        "dflash", DSPARK_SPECULATORS, r"markov_rank = 256 in config\.json, of a DSpark head.*with drafter=dspark"),
    "DSpark of DeepSeek-V4": (
        "dspark", DEEPSPEC | {"dspark_markov_rank": 256}, "of a DeepSeek-V4 DSpark head; this version does not run"),
    "DFlash2": (
        "dflash", DFLASH2, r"selector_rank = 256 in config\.json, of a DFlash2 head.*; run it with drafter=dflash2"),
    "DFlash2 as DSpark": ("dspark", DFLASH2, r"'DFlash2DraftModel'.*run it with drafter=dflash2"),
    "scaled DFlash2": (
        "dflash2", DFLASH2 | {"dflash_config": DFLASH2["dflash_config"] | {"output_multiplier": 0.5}},
        "which would change the scale of"),
    "Domino, exported as DFlash": (
        "dflash",
        DFLASH | {"dflash_config": DFLASH["dflash_config"] | {"projector_type": "domino", "gru_hidden_dim": 1024}},
        r"dflash_config\.projector_type = 'domino'",
    ),
    "scaled EAGLE-3 of speculators": (
        "eagle3", SPECULATORS | {"output_multiplier": 0.5}, "which would change the scale of embeddings, residuals, "),
    "EAGLE-3 with a scale of YaRN that readers disagree on": (
        "eagle3", EAGLE3_QWEN | {"rope_scaling": YARN | {"attn_factor": 0.88}},
        r"rope_scaling\.attn_factor = 0\.88 in config\.json, which would change the scale of attention"),
    "EAGLE-3 of a target with norms of queries": ("eagle3", EAGLE3_QWEN | {"use_qk_norm": True}, "norms of queries"),
    "quantized EAGLE-3": (
        "eagle3",
        SPECULATORS | {"quantization_config": {"quant_method": "compressed-tensors", "format": "float-quantized"}},
        "weights of fewer bits, which this version does not run; dequantize the checkpoint, or take the one that is",
    ),
    "quantized EAGLE-3 with its old field": (
        "eagle3", SPECULATORS | {"compression_config": {"format": "float-quantized"}}, "dequantize the checkpoint"),
    "EAGLE-3 of speculators with quantized layers": (
        "eagle3",
        SPECULATORS | {"transformer_layer_config": LAYER | {"quantization_config": {"quant_method": "fp8"}}},
        "dequantize the checkpoint",
    ),
}  # fmt: skip
"""Name -> kind of drafter, fields, and why the head is not run."""
