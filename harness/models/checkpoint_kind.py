"""What a checkpoint is a checkpoint of, told from its config.json and the names of its tensors. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.models.safetensors_header import StoredTensor

LANGUAGE_MODEL = "draft_model"
"""What runs alone: a target, or a draft model."""
HEADS = ("eagle", "eagle3", "peagle", "dflash")
"""Heads with a folder of their own; an MTP layer lies in its target's."""
NAMES = {
    LANGUAGE_MODEL: "a language model",
    "eagle": "an EAGLE head",
    "eagle3": "an EAGLE-3 head",
    "peagle": "a P-EAGLE head",
    "dflash": "a DFlash head",
    "medusa": "a Medusa head",
}
"""Kinds of drafter, as settings call them -> in words."""


def kind_of(fields: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> str | None:
    """What lies in a folder, a key of NAMES; None where that cannot be told.

    Args:
        fields: of its config.json.
        tensors: of its weights, by name; empty where they are not read.
    """
    stated = fields.get("speculators_model_type")
    if stated is not None:
        return stated if stated in HEADS else None
    if "dflash_config" in fields:
        return "dflash"
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
    return "dflash" if "hidden_norm.weight" in tensors else "eagle"
