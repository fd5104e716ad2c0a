"""Whether what a draft head's file says fits its target; loaders and the check before a run ask the same. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from harness.config.models import HeadChoices
from harness.models.aux_layer_ids import aux_layers_of
from harness.models.model_types import HEAD_LAYERS

MASK_TOKEN_FIELDS = ("mask_token_id", "pard_token", "ptd_token_id")
"""Names of the mask token's id in files of P-EAGLE heads: of speculators, and of vLLM."""
NAMES = {"eagle": "EAGLE", "eagle3": "EAGLE-3", "peagle": "P-EAGLE", "dflash": "DFlash", "medusa": "Medusa"}
_ELSEWHERE = "the head was made for another target"


class SizesOfTarget(Protocol):
    """What a head depends on of its target."""

    @property
    def name(self) -> str: ...

    @property
    def num_layers(self) -> int: ...

    @property
    def hidden_size(self) -> int: ...

    @property
    def vocab_size(self) -> int: ...


def check_head_fields(kind: str, fields: Mapping[str, Any], target: SizesOfTarget, choices: HeadChoices) -> int:
    """Look at the fields of a head's config.json that name parts of its target.

    Args:
        kind: eagle, eagle3, peagle, dflash or medusa.
        fields: of the file.
        target: of the run.
        choices: what the user says in place of the file.

    Returns:
        How many states of the target the head joins.

    Raises:
        ValueError: one does not fit the target, or is none.
    """
    if kind == "medusa":
        check_medusa_fields(fields, target)
        return 1
    layer = fields.get("transformer_layer_config")
    layer = layer if isinstance(layer, Mapping) else fields
    check_layer_type(layer)
    if kind == "eagle":
        return 1
    layers = aux_layers_of(kind, fields, target.num_layers, choices.aux_layers or None).layers
    check_width(kind, fields.get("target_hidden_size") or layer.get("hidden_size") or target.hidden_size, target)
    if kind == "peagle":
        check_mask_token(kind, stated_mask_token(fields), target)
    if kind == "dflash":
        check_num_target_layers(fields, target)
        _, token = stated_block(fields)
        check_mask_token(kind, token, target)
    return len(layers)


def check_medusa_fields(fields: Mapping[str, Any], target: SizesOfTarget) -> None:
    """Raise ValueError where a Medusa head was made for states of another width than a target's."""
    width = fields.get("hidden_size", target.hidden_size)
    if width != target.hidden_size:
        raise ValueError(
            f"Medusa head: expected hidden_size {target.hidden_size}, that of target {target.name}, found {width!r}; "
            f"{_ELSEWHERE}"
        )


def check_layer_type(fields: Mapping[str, Any]) -> None:
    """Raise ValueError where a head's layers are of a type that does not run; without one they are those of a Llama."""
    model_type = fields.get("model_type") or HEAD_LAYERS[0]
    if model_type not in HEAD_LAYERS:
        raise ValueError(
            f"expected layers of model_type {' or '.join(HEAD_LAYERS)}, found {model_type!r}, which this version does "
            "not run"
        )


def check_width(kind: str, width: object, target: SizesOfTarget) -> None:
    """Raise ValueError where a head joins states of another width than a target's."""
    if width != target.hidden_size:
        raise ValueError(
            f"{NAMES[kind]} head: expected target_hidden_size {target.hidden_size}, that of target {target.name}, "
            f"found {width!r}; {_ELSEWHERE}"
        )


def check_mask_token(kind: str, token: int, target: SizesOfTarget) -> None:
    """Raise ValueError where a target has no such token, whose embedding stands for tokens that are not known yet."""
    if not 0 <= token < target.vocab_size:
        raise ValueError(
            f"{NAMES[kind]} head: expected mask_token_id from 0 to {target.vocab_size - 1}, a token of target "
            f"{target.name}, found {token}; {_ELSEWHERE}"
        )


def check_num_target_layers(fields: Mapping[str, Any], target: SizesOfTarget) -> None:
    """Raise ValueError where the file of a DFlash head was made for a target of another number of layers."""
    found = fields.get("num_target_layers", target.num_layers)
    if found != target.num_layers:
        raise ValueError(
            f"expected num_target_layers {target.num_layers}, those of target {target.name}, found {found!r}; "
            f"{_ELSEWHERE}"
        )


def stated_block(fields: Mapping[str, Any]) -> tuple[int, int]:
    """Places of a block and mask token in the file of a DFlash head; raises ValueError where it does not say."""
    nested = fields.get("dflash_config")
    if not isinstance(nested, Mapping) and "transformer_layer_config" not in fields:
        raise ValueError("expected a DFlash head with dflash_config or transformer_layer_config, found neither")
    own = {**fields, **nested} if isinstance(nested, Mapping) else fields
    block_size, token = _number(own, "block_size"), _number(own, "mask_token_id")
    check_block_size(block_size)
    return block_size, token


def _number(fields: Mapping[str, Any], name: str) -> int:
    value = fields.get(name)
    if type(value) is not int:
        raise ValueError(f"expected {name} as one number, found {value!r}; without it this is no DFlash head")
    return value


def check_block_size(block_size: int) -> None:
    """Raise ValueError where the blocks of a DFlash head have no place to draft in."""
    if block_size < 2:
        raise ValueError(f"DFlash head: expected block_size 2 or more, found {block_size}")


def stated_mask_token(fields: Mapping[str, Any]) -> int:
    """The mask token in the file of a P-EAGLE head. Raises ValueError where it names none, or is of another kind."""
    if fields.get("parallel_drafting") is False:
        raise ValueError(
            "expected a head for parallel drafting, found parallel_drafting false; run it with drafter=eagle3"
        )
    stated = {name: fields[name] for name in MASK_TOKEN_FIELDS if fields.get(name) is not None}
    ids = set(map(str, stated.values()))
    if len(ids) != 1 or not all(type(value) is int for value in stated.values()):
        found = ", ".join(f"{name} {value!r}" for name, value in stated.items()) or "none"
        raise ValueError(
            f"expected the mask token as one number in {', '.join(MASK_TOKEN_FIELDS[:-1])} or {MASK_TOKEN_FIELDS[-1]}, "
            f"found {found}; a head without one is no P-EAGLE head"
        )
    return int(next(iter(stated.values())))
