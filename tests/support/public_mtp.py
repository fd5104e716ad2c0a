"""Tiny checkpoints with an MTP layer under the names of the public ones, and what public code computes of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.support.any_models import HYBRID, tiny_config, tiny_model

HIDDEN_SIZE, VOCAB_SIZE = 32, 120


class PublicLayer(NamedTuple):
    """How the checkpoints of a family name the tensors of an MTP layer."""

    layer: str
    """What the names of its decoder layer begin with; else they are those of the family's last layer."""
    norms: tuple[str, ...]
    """Of the embedding, of the state, and behind the layer."""
    projection: str
    matrices: tuple[str, ...] = ()
    """[V, H], of its own though the target has them."""


_NUMBERED = "model.layers.2."
_DEEPSEEK = PublicLayer(
    _NUMBERED,
    tuple(f"{_NUMBERED}{name}.weight" for name in ("enorm", "hnorm", "shared_head.norm")),
    f"{_NUMBERED}eh_proj.weight",
    (f"{_NUMBERED}embed_tokens.weight", f"{_NUMBERED}shared_head.head.weight"),
)
_QWEN = PublicLayer(
    "mtp.layers.0.",
    ("mtp.pre_fc_norm_embedding.weight", "mtp.pre_fc_norm_hidden.weight", "mtp.norm.weight"),
    "mtp.fc.weight",
)
_MIMO = PublicLayer(
    "model.mtp_layers.0.",
    tuple(f"model.mtp_layers.0.{name}.weight" for name in ("token_layernorm", "hidden_layernorm", "final_layernorm")),
    "model.mtp_layers.0.input_proj.weight",
)
PUBLIC: Mapping[str, PublicLayer] = {
    **dict.fromkeys(("deepseek_v3", "deepseek_v32", "glm4_moe"), _DEEPSEEK),
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"), _QWEN),
    "mimo": _MIMO,
}
_OF_QWEN3_5 = {"mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False}
_OF_MIMO = {
    **{"model_type": "mimo", "architectures": ["MiMoForCausalLM"], "attention_bias": True},
    **{"head_dim": 8, "use_sliding_window": False, "sliding_window": 32768, "rope_scaling": None},
    "auto_map": {
        "AutoConfig": "configuration_mimo.MiMoConfig",
        "AutoModelForCausalLM": "modeling_mimo.MiMoForCausalLM",
    },
}
FIELDS: Mapping[str, dict[str, Any]] = {
    "deepseek_v32": {"num_nextn_predict_layers": 1},
    "qwen3_5_text": _OF_QWEN3_5,
    "qwen3_5_moe_text": _OF_QWEN3_5,
    "mimo": {**_OF_MIMO, "num_nextn_predict_layers": 1},
}
"""What their config.json says beside the fields that transformers writes."""


def save_public(model_type: str, folder: Path, vocab_size: int = VOCAB_SIZE) -> Path:
    """Write a tiny target with an MTP layer, whose decoder layer has the tensors of the target's last one."""
    base = "qwen2" if model_type == "mimo" else model_type
    config = tiny_config(base)
    config.vocab_size = vocab_size
    if model_type.startswith("qwen"):
        config.layer_types = HYBRID
    causal_lm = tiny_model(base, config)
    causal_lm.save_pretrained(folder)
    tensors, generator, last = (
        load_file(folder / "model.safetensors"),
        torch.Generator().manual_seed(7),
        "model.layers.1.",
    )
    public = PUBLIC[model_type]

    def drawn(shape: Any, like: Tensor | None = None) -> Tensor:
        noise = torch.randn(tuple(shape), generator=generator)
        return noise * shape[-1] ** -0.5 if like is None or like.ndim > 1 else like + 0.1 * noise

    norm = tensors[f"{last}input_layernorm.weight"]
    of_layer = {
        public.layer + name.removeprefix(last): drawn(tensor.shape, tensor)
        for name, tensor in tensors.items()
        if name.startswith(last)
    }
    of_layer |= {name: drawn(norm.shape, norm) for name in public.norms}
    of_layer[public.projection] = drawn((HIDDEN_SIZE, 2 * HIDDEN_SIZE))
    of_layer |= {name: drawn((vocab_size, HIDDEN_SIZE)) for name in public.matrices}
    save_file(tensors | of_layer, folder / "model.safetensors", metadata={"format": "pt"})
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | FIELDS.get(model_type, {})))
    return folder
