"""The decoder layers that targets and heads are made of: our own of Llama and Qwen3, and transformers' of GLM.

Refuses the parts of a configuration that do not run; `harness.models.model_types` lists the types that do. It does not
know checkpoints.
"""

from __future__ import annotations

import copy
from functools import cache
from typing import Any, NamedTuple, Protocol

from torch import Tensor
from transformers import AutoConfig, Glm4MoeLiteConfig, PreTrainedConfig

from harness.models import llama_layers
from harness.models.attention import SLOTS, slots_attention
from harness.models.checkpoint import configured_by, named
from harness.models.experts import SLOTS_EXPERTS, slots_experts
from harness.models.fused.row_groups import GroupedRows
from harness.models.fused.tree_rows import TreeRows
from harness.models.head_fits import check_layer_type
from harness.models.latent_attention import LatentAttention
from harness.models.llama_config import LlamaConfig
from harness.models.model_types import HEAD_LAYERS, LENGTH_DEPENDENT_ROPE, MODEL_TYPES, mlp_layer_types, of_length


class View(Protocol):
    """What attention needs of a key-value cache; harness.models.slot_cache.SlotView is one."""

    @property
    def mask(self) -> Tensor | None: ...

    @property
    def rope_table(self) -> Tensor | None: ...

    def update(self, key: Tensor, value: Tensor, layer_idx: int, /, *_: object) -> tuple[Tensor, Tensor]: ...


class FusedView(View, Protocol):
    """What the fused operations need beside it."""

    @property
    def slots(self) -> Tensor: ...

    @property
    def starts(self) -> Tensor: ...

    @property
    def tree_rows(self) -> TreeRows | None: ...

    @property
    def grouped_rows(self) -> GroupedRows | None: ...

    def layer(self, layer_idx: int) -> tuple[Tensor, Tensor]: ...


class LayerTypes(NamedTuple):
    """The classes of one model type; what they build has the names and parts of transformers' modules, typed Any."""

    causal_lm: Any
    layer: Any
    norm: Any
    rotary: Any


@cache
def classes_of(model_type: str) -> LayerTypes:
    """The classes of a model type that runs. Those of GLM are imported here: that takes seconds."""
    modeling: Any = llama_layers
    if model_type == Glm4MoeLiteConfig.model_type:
        from transformers.models.glm4_moe_lite import modeling_glm4_moe_lite as modeling
    endings = ("ForCausalLM", "DecoderLayer", "RMSNorm", "RotaryEmbedding")
    return LayerTypes(*(getattr(modeling, MODEL_TYPES[model_type] + ending) for ending in endings))


def is_of(module: Any, model_type: str, *names: str) -> bool:
    """Whether a module is of a named class of a model type, ours or transformers'.

    One of a subclass is not, nor one of a class of that name from elsewhere: they may compute something else.
    """
    kind = type(module)
    return kind.__qualname__ in names and kind.__module__ in _SOURCES[model_type]


def config_class(model_type: str) -> Any:
    """The class of a model type's configurations. Raises ValueError for a type that transformers does not know."""
    return LlamaConfig if model_type == LlamaConfig.model_type else type(AutoConfig.for_model(model_type))


_SOURCES = {
    model_type: (llama_layers.__name__, f"transformers.models.{model_type}.modeling_{model_type}")
    for model_type in MODEL_TYPES
}
"""Where the classes of a model type are from: our own and those of transformers."""
LAYER_NAMES = {model_type: f"{prefix}DecoderLayer" for model_type, prefix in MODEL_TYPES.items()}
"""Of the classes of layers that run, by model type."""

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

    Raises ValueError for a model type, RoPE or attention pattern that is not supported.
    """
    if config.model_type not in MODEL_TYPES:
        raise ValueError(
            f"{source}: expected model_type {' or '.join(MODEL_TYPES)}, found {config.model_type!r}, "
            f"which this version does not run"
        )
    rope_type = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope_type in LENGTH_DEPENDENT_ROPE:
        raise ValueError(f"{source}: {of_length(rope_type)}")
    check_dense_layers(config, source)
    patterns = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    if patterns:
        raise ValueError(f"{source}: expected full attention in every layer, found {', '.join(sorted(patterns))}")
    return classes_of(config.model_type)


def layer_config(data: dict[str, Any], source: object, *, is_stack: bool = False) -> PreTrainedConfig:
    """The configuration of a drafter's layers from the fields of its file; no model_type means llama.

    is_stack: whether there may be more than one. Raises ValueError when such layers do not run; fields that their
    configuration does not know are accounted for by harness.models.accounting.
    """
    if not isinstance(data, dict):
        raise ValueError(f"{source}: expected the sizes of its layers as an object, found {data!r}")
    model_type = data.get("model_type") or LlamaConfig.model_type
    with named(source):
        check_layer_type(data)
    fields = {key: value for key, value in data.items() if key not in ("model_type", "architectures", "auto_map")}
    with configured_by(source):
        config = config_class(model_type).from_dict(fields)
    if config.num_hidden_layers < 1 or (config.num_hidden_layers > 1 and not is_stack):
        wanted = "1 or more" if is_stack else "1"
        raise ValueError(f"{source}: expected num_hidden_layers {wanted}, found {config.num_hidden_layers}")
    layer_types(config, source)
    return config


def resized(config: PreTrainedConfig, num_rows: int) -> PreTrainedConfig:
    """A configuration whose vocabulary has so many rows."""
    if config.get_text_config(decoder=True).vocab_size == num_rows:
        return config
    changed = copy.deepcopy(config)
    text = changed.get_text_config(decoder=True)
    text.vocab_size = num_rows
    padding = getattr(text, "pad_token_id", None)
    # an embedding takes no padding token beyond its rows
    text.pad_token_id = padding if padding is not None and padding < num_rows else None
    return changed


def infer_dense_layers(config: PreTrainedConfig, fields: dict[str, Any]) -> None:
    """Let the number of dense layers count where a config.json, whose `fields` these are, gives no more than that."""
    first = fields.get("first_k_dense_replace")
    if first is not None and "mlp_layer_types" not in fields and hasattr(config, "mlp_layer_types"):
        config.mlp_layer_types = mlp_layer_types(first, config.num_hidden_layers)


def check_dense_layers(config: PreTrainedConfig, source: object) -> None:
    """Raise ValueError when the two fields that say which layers have no experts contradict each other."""
    first, stated = getattr(config, "first_k_dense_replace", None), getattr(config, "mlp_layer_types", None)
    if first is None or stated is None or stated == mlp_layer_types(first, config.num_hidden_layers):
        return
    raise ValueError(
        f"{source}: expected mlp_layer_types of {config.num_hidden_layers} layers, the first {first} dense as "
        f"first_k_dense_replace says and the others sparse, found {stated}; correct one of the two"
    )


def with_slots(config: PreTrainedConfig) -> PreTrainedConfig:
    """A copy of a configuration whose layers attend through slots, and run experts without waiting for the device."""
    config = copy.deepcopy(config)
    config._attn_implementation = SLOTS
    config._experts_implementation = SLOTS_EXPERTS
    return config


def use_slots(layer: Any, slots_config: PreTrainedConfig) -> None:
    """Make a layer do what a configuration of `with_slots` says; latent attention gets a module of ours.

    Layers may be transformers' own, such as those of a model that is being trained.
    """
    if type(layer).__module__.startswith("transformers."):
        _register_with_transformers()
    if type(layer.self_attn).__name__ == "Glm4MoeLiteAttention":
        layer.self_attn = LatentAttention(layer.self_attn)
    layer.self_attn.config = slots_config
    if hasattr(layer.mlp, "experts"):
        layer.mlp.experts.config = slots_config


@cache
def _register_with_transformers() -> None:
    """Let its layers find what a configuration of `with_slots` names."""
    from transformers import AttentionInterface
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    AttentionInterface.register(SLOTS, slots_attention)
    ALL_EXPERTS_FUNCTIONS.register(SLOTS_EXPERTS, slots_experts)


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

    Heads of targets that transformers' code runs are Llamas, as public ones are. Raises ValueError when the target's
    layers are of a type of our own that such heads are not made of.
    """
    if target_config.model_type not in MODEL_TYPES:
        return one_layer_config(_as_llama(target_config), **changes)
    if target_config.model_type not in HEAD_LAYERS:
        raise ValueError(
            f"a head like its target: expected a target of model_type {' or '.join(HEAD_LAYERS)}, found "
            f"{target_config.model_type!r}; describe the head's layer in a config.json of its own"
        )
    return one_layer_config(target_config, **changes)


def _as_llama(config: PreTrainedConfig) -> LlamaConfig:
    """The sizes of any model as those of a Llama; what it does not have is taken from its hidden size."""
    hidden_size = config.hidden_size
    # where layers differ in sizes, a configuration tells those of one of them alone
    of_layers = getattr(config, "per_layer_config", None)
    found = {name: getattr(of_layers[0] if of_layers else config, name, None) for name in WRITTEN_FIELDS}
    sizes: dict[str, Any] = {name: value for name, value in found.items() if type(value) is int}
    if "num_attention_heads" not in sizes:
        sizes |= {"head_dim": min(64, hidden_size), "num_attention_heads": max(1, hidden_size // 64)}
    sizes.setdefault("num_key_value_heads", sizes["num_attention_heads"])
    sizes.setdefault("intermediate_size", 4 * hidden_size)
    return LlamaConfig(**sizes)


def layer_fields(config: PreTrainedConfig) -> dict[str, Any]:
    """A layer configuration as the fields of a config.json; plain RoPE is written as `rope_theta`."""
    fields = {name: getattr(config, name) for name in WRITTEN_FIELDS if hasattr(config, name)}
    rope = config.rope_parameters
    if rope.get("rope_type", "default") == "default":
        return fields | {"rope_theta": rope["rope_theta"]}
    return fields | {"rope_parameters": rope}
