"""RoPE whose angles follow the longest sequence of a batch, held to the angles that it has up to its original length.

Of such types (LENGTH_DEPENDENT_ROPE) one request would change another's logits, and a forward would wait for the device
to find the longest. Up to the original length their angles depend on the position alone.
"""

from __future__ import annotations

import inspect
from types import MethodType
from typing import Any

from harness.models.model_types import LENGTH_DEPENDENT_ROPE


def hold_to_original_length(causal_lm: Any) -> int | None:
    """Let no rotary module look at the longest sequence; returns the positions that are right, None for all."""
    config = causal_lm.config.get_text_config(decoder=True)
    bounds = [_original_length(config, rope) for rope in _ropes(config) if _follows_length(rope)]
    if not bounds:
        return None
    for module in causal_lm.modules():
        if hasattr(module, "rope_type") and hasattr(type(module).forward, "__wrapped__"):
            # the decorator around it looks for the longest
            module.forward = MethodType(inspect.unwrap(type(module).forward), module)
    return min(bounds)


def _ropes(config: Any) -> list[dict[str, Any]]:
    """The parameters of RoPE, of each kind of layer where they differ."""
    found = getattr(config, "rope_parameters", None) or {}
    nested = [item for item in found.values() if isinstance(item, dict) and "rope_type" in item]
    return nested or [found]


def _follows_length(rope: dict[str, Any]) -> bool:
    return rope.get("rope_type") in LENGTH_DEPENDENT_ROPE


def _original_length(config: Any, rope: dict[str, Any]) -> int:
    if rope["rope_type"] == "dynamic":
        return int(config.max_position_embeddings)
    stated = rope.get("original_max_position_embeddings")
    return int(stated or getattr(config, "original_max_position_embeddings", None) or config.max_position_embeddings)
