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


def shape_folder(folder: Path, **changes: Any) -> Path:
    """A folder with the config.json of a tiny model; a field changed to None is left out."""
    fields = {name: value for name, value in (SHAPE | changes).items() if value is not None}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(fields))
    return folder
