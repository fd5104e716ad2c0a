"""Make layers ready for the fused operations: all of a model, or none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from harness.models.fused.obstacle import fusion_obstacle
from harness.models.fused.pack import pack_layer


def fuse_layers(layers: Iterable[Any], rotary: Any) -> str | None:
    """Pack the layers of a model; returns why one of them cannot be fused, and packs none then.

    Args:
        layers: decoder layers of transformers.
        rotary: the rotary module that turns their queries and keys.
    """
    layers = list(layers)
    for layer in layers:
        obstacle = fusion_obstacle(layer, rotary)
        if obstacle is not None:
            return obstacle
    for layer in layers:
        pack_layer(layer)
    return None
