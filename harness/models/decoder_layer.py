"""The decoder layers of transformers that targets and heads are made of.

One place knows which model types are supported and which parts of a configuration are refused. It does not know
checkpoints.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple, Protocol

from torch import Tensor
from transformers import AutoConfig, Glm4MoeLiteConfig, LlamaConfig, PreTrainedConfig, Qwen3Config
from transformers.models.glm4_moe_lite import modeling_glm4_moe_lite
from transformers.models.llama import modeling_llama
from transformers.models.qwen3 import modeling_qwen3

from harness.models.attention import SLOTS
from harness.models.dense_layers import check_dense_layers
from harness.models.experts import SLOTS_EXPERTS
from harness.models.latent_attention import LatentAttention
from harness.models.unread_fields import layer_field_names, warn_of_unknown


class View(Protocol):
    """What attention needs of a key-value cache; harness.models.slot_cache.SlotView is one."""

    @property
    def mask(self) -> Tensor | None: ...

    @property
    def rope_table(self) -> Tensor | None: ...

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *_: object) -> tuple[Tensor, Tensor]: ...


class FusedView(View, Protocol):
    """What the fused operations need beside it."""

    @property
    def slots(self) -> Tensor: ...

    @property
    def starts(self) -> Tensor: ...

    def layer(self, layer_idx: int) -> tuple[Tensor, Tensor]: ...


class LayerTypes(NamedTuple):
    """The classes of one model type; what they build is called as transformers defines it, so it is typed Any."""

    causal_lm: Any
    layer: Any
    norm: Any
    rotary: Any


LAYER_TYPES = {
    LlamaConfig.model_type: LayerTypes(
        modeling_llama.LlamaForCausalLM,
        modeling_llama.LlamaDecoderLayer,
        modeling_llama.LlamaRMSNorm,
        modeling_llama.LlamaRotaryEmbedding,
    ),
    Qwen3Config.model_type: LayerTypes(
        modeling_qwen3.Qwen3ForCausalLM,
        modeling_qwen3.Qwen3DecoderLayer,
        modeling_qwen3.Qwen3RMSNorm,
        modeling_qwen3.Qwen3RotaryEmbedding,
    ),
    Glm4MoeLiteConfig.model_type: LayerTypes(
        modeling_glm4_moe_lite.Glm4MoeLiteForCausalLM,
        modeling_glm4_moe_lite.Glm4MoeLiteDecoderLayer,
        modeling_glm4_moe_lite.Glm4MoeLiteRMSNorm,
        modeling_glm4_moe_lite.Glm4MoeLiteRotaryEmbedding,
    ),
}

HEAD_LAYERS = (LlamaConfig.model_type, Qwen3Config.model_type)
"""Types of layer that EAGLE and EAGLE-3 heads are made of; an MTP layer is of its target's type."""

LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")
"""RoPE types whose tables follow the longest sequence seen: a request's output would depend on its batch."""

WRITTEN_FIELDS = (
    "model_type",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "rms_norm_eps",
    "attention_bias",
    "mlp_bias",
    "max_position_embeddings",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
)


def layer_types(config: PreTrainedConfig, source: object) -> LayerTypes:
    """The classes for a configuration; `source` names its file in errors.

    Raises ValueError for a model type, RoPE, attention pattern or quantization that is not supported.
    """
    if config.model_type not in LAYER_TYPES:
        raise ValueError(
            f"{source}: expected model_type {' or '.join(LAYER_TYPES)}, found {config.model_type!r}, "
            f"which this version does not run"
        )
    rope_type = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope_type in LENGTH_DEPENDENT_ROPE:
        raise ValueError(
            f"{source}: expected RoPE that depends on the position alone, found rope_type {rope_type!r}, whose angles "
            f"change with the longest sequence of a batch"
        )
    check_dense_layers(config, source)
    patterns = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    if patterns:
        raise ValueError(f"{source}: expected full attention in every layer, found {', '.join(sorted(patterns))}")
    if getattr(config, "quantization_config", None):
        raise ValueError(f"{source}: expected plain weights, found a quantization_config; dequantize the checkpoint")
    return LAYER_TYPES[config.model_type]


def layer_config(data: dict[str, Any], source: object) -> PreTrainedConfig:
    """The configuration of a drafter's layers from the fields of its file; no model_type means llama.

    Raises ValueError when such layers do not run; warns about fields that nobody reads.
    """
    model_type = data.get("model_type") or LlamaConfig.model_type
    if model_type not in HEAD_LAYERS:
        raise ValueError(
            f"{source}: expected layers of model_type {' or '.join(HEAD_LAYERS)}, found {model_type!r}, "
            f"which this version does not run"
        )
    fields = {key: value for key, value in data.items() if key not in ("model_type", "architectures", "auto_map")}
    config = type(AutoConfig.for_model(model_type)).from_dict(fields)
    warn_of_unknown(fields, layer_field_names(config), source)
    if config.num_hidden_layers != 1:
        raise ValueError(f"{source}: expected num_hidden_layers 1, found {config.num_hidden_layers}")
    layer_types(config, source)
    return config


def with_slots(config: PreTrainedConfig) -> PreTrainedConfig:
    """A copy of a configuration whose layers attend through slots, and run experts without waiting for the device."""
    config = copy.deepcopy(config)
    config._attn_implementation = SLOTS
    config._experts_implementation = SLOTS_EXPERTS
    return config


def use_slots(layer: Any, slots_config: PreTrainedConfig) -> None:
    """Make a layer do what a configuration of `with_slots` says; latent attention gets a module of ours."""
    if isinstance(layer.self_attn, modeling_glm4_moe_lite.Glm4MoeLiteAttention):
        layer.self_attn = LatentAttention(layer.self_attn)
    layer.self_attn.config = slots_config
    if hasattr(layer.mlp, "experts"):
        layer.mlp.experts.config = slots_config


class CacheShape(NamedTuple):
    """What one layer caches of one token."""

    num_heads: int
    key_dim: int
    """Width of a head's key."""
    value_dim: int
    """Width of a head's value; 0 where values are part of the keys."""


def cache_shape(config: PreTrainedConfig) -> CacheShape:
    """What the layers of a configuration cache."""
    if config.model_type == Glm4MoeLiteConfig.model_type:
        return CacheShape(1, config.kv_lora_rank + config.qk_rope_head_dim, 0)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return CacheShape(config.num_key_value_heads, head_dim, head_dim)


def one_layer_config(target_config: PreTrainedConfig, **changes: Any) -> PreTrainedConfig:
    """The target's layer configuration, one layer deep, with some fields changed (for a drafter made for it).

    Where the target has experts, the layer has them too, whatever the target's first layer is.
    """
    left_out = ("layer_types", "first_k_dense_replace")
    data = {key: value for key, value in target_config.to_dict().items() if key not in left_out}
    if "mlp_layer_types" in data:
        data["mlp_layer_types"] = ["sparse"]
    return type(target_config).from_dict(data | {"num_hidden_layers": 1} | changes)


def head_layer_config(target_config: PreTrainedConfig, **changes: Any) -> PreTrainedConfig:
    """The layer of an EAGLE or EAGLE-3 head like the target's, with some fields changed.

    Raises ValueError when the target's layers are of a type that such heads are not made of.
    """
    if target_config.model_type not in HEAD_LAYERS:
        raise ValueError(
            f"a head like its target: expected a target of model_type {' or '.join(HEAD_LAYERS)}, found "
            f"{target_config.model_type!r}; describe the head's layer in a config.json of its own"
        )
    return one_layer_config(target_config, **changes)


def layer_fields(config: PreTrainedConfig) -> dict[str, Any]:
    """A layer configuration as the fields of a config.json; plain RoPE is written as `rope_theta`."""
    fields = {name: getattr(config, name) for name in WRITTEN_FIELDS if hasattr(config, name)}
    rope = config.rope_parameters
    if rope.get("rope_type", "default") == "default":
        return fields | {"rope_theta": rope["rope_theta"]}
    return fields | {"rope_parameters": rope}
