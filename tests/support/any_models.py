"""Tiny models of many families of transformers, with random weights that make varied tokens."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

VOCAB_SIZE = 120
NO_TOKENIZER = SimpleNamespace(eos_token_id=None)
"""For models that are given token ids."""
SIZES = {
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), VOCAB_SIZE),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "word_embed_proj_dim"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner", "intermediate_size_mlp"), 48),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx"), 128),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("sliding_window", "attention_chunk_size"), 8),
    **dict.fromkeys(("rotary_dim", "qk_rope_head_dim", "head_dim", "global_head_dim"), 8),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "v_head_dim"), 16),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 24),
    **{"num_key_value_heads": 2, "num_experts_per_tok": 2, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1},
    **{"hidden_size_per_layer_input": 8, "num_kv_shared_layers": 0, "index_topk": 6, "index_n_heads": 4},
    **dict.fromkeys(("linear_num_value_heads", "linear_num_key_heads", "n_groups", "mamba_n_groups"), 2),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "state_size", "mamba_d_state"), 8),
    **{"linear_conv_kernel_dim": 4, "expand": 2, "mamba_expand": 2, "mamba_n_heads": 8, "mamba_d_head": 8},
    **{
        "chunk_size": 16,
        "use_mambapy": False,
        "index_head_dim": 16,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": None,
        "tie_word_embeddings": False,
    },
}
"""Fields under all their names; a family takes those that it has."""
ALTERNATING = ["sliding_attention", "full_attention"]
HYBRID = ["linear_attention", "full_attention"]


def alike(*names: str, **fields: Any) -> dict[str, dict[str, Any]]:
    """Families that take the same fields."""
    return {name: dict(fields) for name in names}


FAMILIES: dict[str, dict[str, Any]] = {
    # dense
    **alike("llama", "qwen2", "qwen3", "gemma", "phi", "olmo2", "glm4", "cohere", "granite", "smollm3"),
    **alike("starcoder2", "stablelm", "nemotron", "gpt_neox", "gpt2", "gpt_bigcode", "opt", "seed_oss"),
    "phi3": {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    # windows of 8 tokens, chunks, soft caps
    **alike("ministral", "gemma3_text", "cohere2", "olmo3", "exaone4", "gemma4_text", layer_types=ALTERNATING),
    "mistral": {},
    "gemma2": {"attn_logit_softcapping": 1.0, "final_logit_softcapping": 3.0},
    "gemma3n_text": {
        "layer_types": ALTERNATING, "intermediate_size": [48, 48], "laurel_rank": 8,
        "activation_sparsity_pattern": [0.0, 0.0],
    },
    # experts; sinks in gpt_oss
    **alike("qwen2_moe", "qwen3_moe", "glm4_moe", "ernie4_5_moe", "minimax_m2", "gpt_oss"),
    "mixtral": {"sliding_window": None},
    "llama4_text": {"num_hidden_layers": 4, "no_rope_layers": [1, 1, 1, 0]},
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 10000.0},
        "ffn_config": {"ffn_hidden_size": 24, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 32},
    },
    # latent attention, with sparse selection in the last
    **alike("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "minicpm3", "longcat_flash"),
    "deepseek_v32": {},
    # attention of their own
    "falcon": {"new_decoder_architecture": True, "num_kv_heads": 2, "alibi": False},
    **alike("bloom", "mpt", "gptj", "codegen"),
    # recurrent states beside attention, and alone
    **alike("qwen3_next", "qwen3_5_text", "olmo_hybrid", layer_types=HYBRID),
    **alike("granitemoehybrid", layer_types=HYBRID, shared_intermediate_size=24),
    **alike("kimi_linear", layer_types=HYBRID, linear_head_dim=8),
    **alike("lfm2", layer_types=["conv", "full_attention"]),
    "bamba": {"attn_layer_indices": [1]},
    "falcon_h1": {"mamba_d_ssm": 64},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_dt_rank": 4},
    "nemotron_h": {
        "mamba_num_heads": 8, "mamba_head_dim": 8, "ssm_state_size": 8, "moe_shared_expert_intermediate_size": 24,
    },
    "mamba": {},
    "mamba2": {"num_heads": 8, "head_dim": 8},
}  # fmt: skip
"""Families that run -> fields beside SIZES."""
SILENTLY_WRONG: dict[str, dict[str, Any]] = {
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 8},
    "openai-gpt": {},
}
"""Families whose code masks or places tokens by rules of its own."""


def _has(config: Any, name: str) -> bool:
    try:
        return hasattr(config, name)
    except Exception:
        # newer configurations raise an error of their own for what differs between layers
        return True


def tiny_config(model_type: str) -> Any:
    """The configuration of a tiny model."""
    kind = CONFIG_MAPPING[model_type]
    default = kind()
    sizes = {name: value for name, value in SIZES.items() if _has(default, name)}
    if "kv_lora_rank" in sizes:
        sizes |= {"num_key_value_heads": 4}
    if model_type in ("falcon", "starcoder2"):
        sizes.pop("head_dim", None)
    config = kind(**sizes | (FAMILIES | SILENTLY_WRONG).get(model_type, {}))
    # a class may fill in ids of its own, which lie beyond this vocabulary
    config.eos_token_id = None
    return config


def tiny_model(model_type: str, config: Any = None) -> Any:
    """A frozen model whose layers and embedding weigh alike, so that its tokens follow from all that it reads."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config or tiny_config(model_type), attn_implementation="eager")
    model = model.float().eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        if parameter.ndim >= 2:
            is_embedding = "embed" in name or "wte" in name
            parameter.normal_(0, 0.5 if is_embedding else parameter.shape[-1] ** -0.5)
        else:
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.generation_config.eos_token_id = None
    return model


def save_tiny(model: Any, folder: Path) -> Path:
    """Save a model as a checkpoint without a tokenizer."""
    model.save_pretrained(folder)
    return folder


def disturbed(model: Any, share: float = 0.25) -> dict[str, torch.Tensor]:
    """The weights of a model that mostly, not always, continues as this one does."""
    generator = torch.Generator().manual_seed(1)
    return {
        name: tensor + share * tensor.std() * torch.randn(tensor.shape, generator=generator)
        if tensor.ndim >= 2 and tensor.is_floating_point()
        else tensor
        for name, tensor in model.state_dict().items()
    }
