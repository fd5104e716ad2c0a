"""Places of a config.json that say the same thing, and must not say two: readers differ in which of them they take.

The layers that a head reads, its mask token and its anchor have several places too; `aux_layer_ids`, `head_fits` and
`dflash_anchor` compare them. JSON only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from harness.models.model_types import mlp_layer_types

TAKE_OUT = "take out the one that is wrong"
SAME = (
    ("rope_theta", "rope_scaling.rope_theta", "rope_parameters.rope_theta"),
    ("rope_type", "type"),
    ("n_routed_experts", "num_local_experts"),
    ("norm_before_fc", "eagle_config.norm_before_fc"),
    *(
        (name, f"dflash_config.{name}")
        for name in (
            *("block_size", "mask_token_id", "is_causal", "markov_rank", "markov_head_type"),
            *("enable_confidence_head", "confidence_head_with_markov"),
            *("selector_rank", "selector_top_k", "conv_kernel_size", "conv_group_size"),
        )
    ),
    ("speculators_model_type", "speculators_config.algorithm"),
)
"""Fields of one meaning, of an object or of an object in it."""


class Contradiction(NamedTuple):
    """Two places with different values."""

    name: str
    value: Any
    other: str
    other_value: Any


def contradictions(fields: Mapping[str, Any]) -> Iterator[Contradiction]:
    """Those of an object, without fields that are null."""
    for names in SAME:
        found = {name: value for name in names if (value := _at(fields, name)) is not None}
        for (name, value), (other, other_value) in pairwise(found.items()):
            if value != other_value:
                yield Contradiction(name, value, other, other_value)
    scaling, parameters = fields.get("rope_scaling"), fields.get("rope_parameters")
    if scaling and parameters and isinstance(scaling, Mapping) and isinstance(parameters, Mapping):
        # transformers takes rope_scaling in place of the other, with the rope_theta beside it
        theta = scaling.get("rope_theta", fields.get("rope_theta"))
        if _rope(scaling, theta) != _rope(parameters, theta):
            yield Contradiction("rope_scaling", scaling, "rope_parameters", parameters)
    first, kinds, count = (
        fields.get(name) for name in ("first_k_dense_replace", "mlp_layer_types", "num_hidden_layers")
    )
    if kinds and type(first) is int and type(count) is int and kinds != mlp_layer_types(first, count):
        yield Contradiction("first_k_dense_replace", first, "mlp_layer_types", kinds)


def _at(fields: Mapping[str, Any], place: str) -> Any:
    outer, _, inner = place.rpartition(".")
    section = fields.get(outer) if outer else fields
    return section.get(inner) if isinstance(section, Mapping) else None


def _rope(parameters: Mapping[str, Any], theta: Any) -> dict[str, Any]:
    """What they ask for, the type under one name; theta is what counts where they state none."""
    rope_type = parameters.get("rope_type") or parameters.get("type") or "default"
    others = {name: value for name, value in parameters.items() if name != "type"}
    return {"rope_theta": theta, **others, "rope_type": rope_type}
