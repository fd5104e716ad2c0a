"""Which targets several ranks cannot compute together, as far as a configuration tells. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SPLIT_BY = ("num_attention_heads", "num_key_value_heads")
"""Fields with numbers of heads, which ranks share out."""


def rounded_misfit(rounded: str, num_ranks: int) -> str | None:
    """What is wrong with rounded weights, of which transformers reads no parts; None if nothing is.

    rounded: a label of harness.models.rounded_weights, empty for weights that are not rounded.
    """
    if not rounded or num_ranks == 1:
        return None
    return (
        f"backend.tensor_parallel: expected 1 with a checkpoint that was rounded to fewer bits ({rounded}), found "
        f"{num_ranks}"
    )


def heads_misfit(fields: Mapping[str, Any], num_ranks: int) -> str | None:
    """What is wrong with the heads of a model whose attention is split; None if nothing is.

    Half a head means nothing to attention. fields: of its config.json.
    """
    for name in SPLIT_BY:
        number = fields.get(name)
        if isinstance(number, int) and number % num_ranks:
            return (
                f"backend.tensor_parallel: expected a number that divides {name}={number}, found {num_ranks}; the plan "
                "of transformers splits attention by heads"
            )
    return None
