"""Tiny architectures without weights: a folder with nothing but a config.json, for models with random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

EOS = 6100
"""Beyond the ids of the zoo's tokenizer."""
SHAPE: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 6200,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-05,
    "max_position_embeddings": 256,
    "rope_theta": 500000.0,
    "eos_token_id": EOS,
    "tie_word_embeddings": False,
    "num_nextn_predict_layers": 1,
    "dtype": "bfloat16",
}
GLM: dict[str, Any] = {
    "model_type": "glm4_moe_lite",
    "num_hidden_layers": 5,
    "head_dim": None,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 32,
    "q_lora_rank": 48,
    "kv_lora_rank": 40,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 16,
    "v_head_dim": 20,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "routed_scaling_factor": 1.8,
    "first_k_dense_replace": 2,
    "eos_token_id": [EOS, EOS + 1],
}
"""Changes of SHAPE to a GLM: latent attention, and experts in all layers but the first two."""


def shape_folder(folder: Path, **changes: Any) -> Path:
    """A folder with the config.json of a tiny model; a field changed to None is left out."""
    fields = {name: value for name, value in (SHAPE | changes).items() if value is not None}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(fields))
    return folder
