"""A language model without some of its layers, made of the very weights of the whole one.

Layers of our own are taken out of the stack. Those of transformers' code stay in their place and hand on what they get
(harness.models.general.passed_over). Nothing of the whole model changes.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any

from torch import nn

from harness.models.target import TargetModel


def without_layers(target: TargetModel, skipped: Collection[int]) -> TargetModel:
    """A target without some layers, for drafting for that target.

    Args:
        target: as it runs, fused or not.
        skipped: numbers of layers, counted from 0; at least one.

    Raises:
        ValueError: they cannot be left out.
    """
    assert skipped, "the whole target would draft what it verifies"
    assert max(skipped) < target.num_layers and len(skipped) < target.num_layers, "the settings were checked"
    if target.is_recurrent:
        raise _not_skipped(target, "its recurrent states follow every layer of one sequence")
    # imports the code of the general path, which our own layers do not need
    if type(target) is not TargetModel:
        from harness.models.general.passed_over import layers_sharing_caches, passing_over
        from harness.models.general.target import GeneralTarget

        assert isinstance(target, GeneralTarget)
        sharing = layers_sharing_caches(target)
        if sharing:
            listed = ", ".join(map(str, sharing))
            raise _not_skipped(target, f"its layers {listed} read the keys and values of others")
        return passing_over(target, skipped)
    shallow = copy.copy(target)
    causal_lm, body = _beside(target.causal_lm), _beside(target.causal_lm.model)
    kept = [layer for index, layer in enumerate(body.layers) if index not in skipped]
    body.layers = nn.ModuleList([_numbered(layer, place) for place, layer in enumerate(kept)])
    causal_lm.model = body
    shallow.causal_lm, shallow.num_layers = causal_lm, len(kept)
    shallow.assumptions = ()
    return shallow


def _not_skipped(target: TargetModel, reason: str) -> ValueError:
    return ValueError(
        f"drafter=self_speculation: expected a target whose layers can be left out, found {target.name}: {reason}; use "
        "another drafter"
    )


def _beside(module: Any) -> Any:
    """A module with the same parts, whose parts can be replaced."""
    copied = copy.copy(module)
    copied._modules = dict(module._modules)
    return copied


def _numbered(layer: Any, place: int) -> Any:
    """A layer of the same weights whose keys and values lie at another place of a cache."""
    numbered, attention = _beside(layer), _beside(layer.self_attn)
    attention.layer_idx = place
    numbered.self_attn = attention
    return numbered
