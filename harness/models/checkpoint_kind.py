"""What a checkpoint is a checkpoint of, told from its config.json and the names of its tensors. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.models.checkpoint import CheckpointError
from harness.models.safetensors_header import StoredTensor

LANGUAGE_MODEL = "draft_model"
"""What runs alone: a target, or a draft model."""
BLOCK_HEADS = ("dflash", "dspark", "dflash2")
"""Heads that fill a block of masked places."""
HEADS = ("eagle", "eagle3", "peagle", *BLOCK_HEADS)
"""Heads with a folder of their own; an MTP layer lies in its target's."""
NAMES = {
    LANGUAGE_MODEL: "a language model",
    "eagle": "an EAGLE head",
    "eagle3": "an EAGLE-3 head",
    "peagle": "a P-EAGLE head",
    "dflash": "a DFlash head",
    "dspark": "a DSpark head",
    "dflash2": "a DFlash2 head",
    "medusa": "a Medusa head",
}
"""Kinds of drafter, as settings call them -> in words."""
ASSISTANTS = ("gemma4_assistant", "gemma4_unified_assistant")
"""Model types of drafters whose layers have no keys and values of their own."""


def check_own_cache(fields: Mapping[str, Any], source: object) -> None:
    """Raise CheckpointError for an assistant that reads the cache of its target, and say what that would need.

    transformers 5.23 has the classes: their configuration wants all layers to share keys, and that of their layers
    (Gemma4TextConfig.kv_sharing_modes) refuses it. Drafters are handed the target's states (TargetStep of
    harness.drafters.protocol). Nor does a file say at which position such an assistant asks: transformers takes that of
    the last token, vLLM the one before it.
    """
    if fields.get("model_type") in ASSISTANTS:
        raise CheckpointError(
            f"{source}: expected a model with keys and values of its own, found model_type {fields['model_type']}: the "
            "layers of such an assistant read those of its target, transformers 5.23 fails to build them, and drafters "
            "here are handed the target's states, not its cache; choose another drafter (draft_model with a small "
            "model of the family, eagle3, ngram, suffix)"
        )


def kind_of(fields: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> str | None:
    """What lies in a folder, a key of NAMES; None where that cannot be told.

    Args:
        fields: of its config.json.
        tensors: of its weights, by name; empty where they are not read.
    """
    stated = fields.get("speculators_model_type")
    if stated is not None:
        return stated if stated in HEADS else None
    if "dflash_config" in fields or _is_of_deepspec(fields):
        return _kind_of_block(fields, tensors)
    if fields.get("medusa_num_heads") or fields.get("model_type") == "medusa":
        return "medusa"
    if any(name.startswith(("model.layers.", "model.embed_tokens.")) for name in tensors):
        return LANGUAGE_MODEL
    return _kind_of_head(tensors) if "fc.weight" in tensors else None


def _kind_of_head(tensors: Mapping[str, StoredTensor]) -> str:
    if "mask_hidden" in tensors:
        return "peagle"
    if any(name.startswith("midlayer.") for name in tensors) or "layers.0.hidden_norm.weight" in tensors:
        return "eagle3"
    # of the context, outside its layers
    return _kind_of_block({}, tensors) if "hidden_norm.weight" in tensors else "eagle"


def _is_of_deepspec(fields: Mapping[str, Any]) -> bool:
    """Whether the fields of a block stand beside those of its layers, as DeepSpec writes them."""
    return "block_size" in fields and "mask_token_id" in fields and "target_layer_ids" in fields


def _kind_of_block(fields: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> str:
    nested = fields.get("dflash_config")
    own = {**fields, **nested} if isinstance(nested, Mapping) else fields
    named = fields.get("architectures")
    names = " ".join(map(str, named)).lower() if isinstance(named, list) else ""
    for kind, field, prefix in (
        ("dspark", "markov_rank", "markov_head."),
        ("dflash2", "selector_rank", "candidate_sel"),
    ):
        if own.get(field) or kind in names or any(name.startswith(prefix) for name in tensors):
            return kind
    return "dflash"
