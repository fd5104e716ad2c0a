"""The model types that layers of our own run, and which path a model takes. Importable without torch."""

from collections.abc import Mapping
from typing import Any

from harness.config.models import Layers

MODEL_TYPES = {"llama": "Llama", "qwen3": "Qwen3", "glm4_moe_lite": "Glm4MoeLite"}
"""Types of config.json -> what transformers' classes of that type are called by."""
DENSE_TYPES = ("llama", "qwen3")
"""Types whose layers have neither experts nor latent attention."""
HEAD_LAYERS = DENSE_TYPES
"""Types of layer that EAGLE and EAGLE-3 heads are made of; an MTP layer is of its target's type."""


QUANTIZATION = "quantization_config"
"""The field of config.json that says how the tensors beside it were rounded, and how they are stored."""

CONVERTED = "converted_from"
"""The field of config.json in which harness.models.gguf_checkpoint names the GGUF file of the weights, and its type."""


def takes_general_path(fields: Mapping[str, Any], layers: Layers) -> bool:
    """Whether transformers' own modeling code runs a model (harness.models.general).

    fields: of its config.json. Layers of our own read no rounded weights.
    """
    is_ours = str(fields.get("model_type")) in MODEL_TYPES and not is_quantized(fields)
    return layers is Layers.transformers or (layers is Layers.auto and not is_ours)


def is_quantized(fields: Mapping[str, Any]) -> bool:
    """Whether the tensors beside a config.json are rounded, and stored in a form of their own."""
    return bool(fields.get(QUANTIZATION))


LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")
"""RoPE types whose tables follow the longest sequence seen: a request's output would depend on its batch."""


def of_length(rope_type: str) -> str:
    """What to say about such a type in a configuration."""
    return (
        f"expected RoPE that depends on the position alone, found rope_type {rope_type!r}, whose angles change with "
        "the longest sequence of a batch"
    )


def mlp_layer_types(num_dense: int, num_layers: int) -> list[str]:
    """The kind of each layer of a model whose first ones have no experts, in transformers' words."""
    return ["dense" if index < num_dense else "sparse" for index in range(num_layers)]
