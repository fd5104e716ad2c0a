"""Which layers of a model with experts have none: the first few, by either of two fields of config.json.

Published files give their number, `first_k_dense_replace`. transformers wants the kind of every layer,
`mlp_layer_types`, and takes one dense layer where that is absent, whatever the number says.
"""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedConfig


def infer_dense_layers(config: PreTrainedConfig, fields: dict[str, Any]) -> None:
    """Let the number of dense layers count where a config.json, whose `fields` these are, gives no more than that."""
    first = fields.get("first_k_dense_replace")
    if first is not None and "mlp_layer_types" not in fields and hasattr(config, "mlp_layer_types"):
        config.mlp_layer_types = mlp_layer_types(first, config.num_hidden_layers)


def mlp_layer_types(num_dense: int, num_layers: int) -> list[str]:
    """The kind of each layer, in transformers' words."""
    return ["dense" if index < num_dense else "sparse" for index in range(num_layers)]


def check_dense_layers(config: PreTrainedConfig, source: object) -> None:
    """Raise ValueError when the two fields that say which layers have no experts contradict each other."""
    first, stated = getattr(config, "first_k_dense_replace", None), getattr(config, "mlp_layer_types", None)
    if first is None or stated is None or stated == mlp_layer_types(first, config.num_hidden_layers):
        return
    raise ValueError(
        f"{source}: expected mlp_layer_types of {config.num_hidden_layers} layers, the first {first} dense as "
        f"first_k_dense_replace says and the others sparse, found {stated}; correct one of the two"
    )
