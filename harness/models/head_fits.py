"""Whether what a draft head's file says fits its target; loaders and the check before a run ask the same. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from harness.config.models import Confidence, HeadChoices
from harness.models.aux_layer_ids import aux_layers_of
from harness.models.checkpoint_kind import BLOCK_HEADS
from harness.models.model_types import HEAD_LAYERS

MASK_TOKEN_FIELDS = ("mask_token_id", "pard_token", "ptd_token_id")
"""Names of the mask token's id in files of P-EAGLE heads: of speculators, and of vLLM."""
NAMES = {
    "eagle": "EAGLE",
    "eagle3": "EAGLE-3",
    "peagle": "P-EAGLE",
    "dflash": "DFlash",
    "dspark": "DSpark",
    "dflash2": "DFlash2",
    "medusa": "Medusa",
}
MARKOV_HEADS = ("vanilla", "gated", "rnn")
"""How a DSpark head makes the bias of a row from the token before it."""
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
        kind: eagle, eagle3, peagle, dflash, dspark, dflash2 or medusa.
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
    if kind in BLOCK_HEADS:
        check_num_target_layers(fields, target)
        check_mask_token(kind, stated_block(kind, fields).mask_token_id, target)
    if kind == "dspark":
        confidence_told(fields, choices)
    if kind == "dflash2":
        stated_selector(fields)
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
    """Raise ValueError where the file of a head was made for a target of another number of layers."""
    found = fields.get("num_target_layers", target.num_layers)
    if found != target.num_layers:
        raise ValueError(
            f"expected num_target_layers {target.num_layers}, those of target {target.name}, found {found!r}; "
            f"{_ELSEWHERE}"
        )


class StatedBlock(NamedTuple):
    """What the file of a head says of its blocks."""

    block_size: int
    """Places that it was trained on."""
    mask_token_id: int


def stated_block(kind: str, fields: Mapping[str, Any]) -> StatedBlock:
    """The blocks in the file of a head that fills such; raises ValueError where it does not say."""
    name = NAMES[kind]
    if kind != "dspark" and not ({"dflash_config", "transformer_layer_config"} & {*fields}):
        raise ValueError(f"expected a {name} head with dflash_config or transformer_layer_config, found neither")
    own = block_fields(fields)
    block_size, token = (_number(name, own, field) for field in ("block_size", "mask_token_id"))
    check_block_size(kind, block_size)
    return StatedBlock(block_size, token)


def block_fields(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields of a head that fills blocks, which may stand in an object of their own."""
    nested = fields.get("dflash_config")
    return {**fields, **nested} if isinstance(nested, Mapping) else fields


def _number(name: str, fields: Mapping[str, Any], field: str, least: int | None = None) -> int:
    value = fields.get(field)
    if type(value) is not int:
        raise ValueError(f"expected {field} as one number, found {value!r}; without it this is no {name} head")
    if least is not None and value < least:
        raise ValueError(f"{name} head: expected {field} {least} or more, found {value}")
    return value


def check_block_size(kind: str, block_size: int) -> None:
    """Raise ValueError where the blocks of a head have no place to draft in."""
    if block_size < 2:
        raise ValueError(f"{NAMES[kind]} head: expected block_size 2 or more, found {block_size}")


class StatedMarkov(NamedTuple):
    """What the file of a DSpark head says of the bias that follows from the token before."""

    rank: int
    """Width of a token's embedding; 0 for no bias."""
    head_type: str
    """One of MARKOV_HEADS."""


def stated_markov(fields: Mapping[str, Any]) -> StatedMarkov:
    """The Markov head in the file of a DSpark head; raises ValueError where it does not say."""
    own = block_fields(fields)
    rank = _number(NAMES["dspark"], own, "markov_rank", least=0)
    head_type = own.get("markov_head_type", None if rank else MARKOV_HEADS[0])
    if head_type not in MARKOV_HEADS:
        raise ValueError(
            f"DSpark head: expected markov_head_type {', '.join(MARKOV_HEADS[:-1])} or {MARKOV_HEADS[-1]}, found "
            f"{head_type!r}"
        )
    return StatedMarkov(rank, head_type)


class StatedConfidence(NamedTuple):
    """What the file of a DSpark head says of the head that predicts whether a draft token is accepted."""

    enable_confidence_head: bool
    confidence_head_with_markov: bool
    """Whether it also reads the embedding of the token before, which the Markov head has."""


def stated_confidence(fields: Mapping[str, Any]) -> StatedConfidence:
    """The confidence head in the file of a DSpark head; raises ValueError where it does not say which it is."""
    own, rank = block_fields(fields), stated_markov(fields).rank
    is_there, with_markov = (own.get(name, False) for name in StatedConfidence._fields)
    for name, value in zip(StatedConfidence._fields, (is_there, with_markov), strict=True):
        if type(value) is not bool:
            raise ValueError(f"DSpark head: expected {name} as true or false, found {value!r}")
    if is_there and "confidence_head_with_markov" not in own:
        raise ValueError("DSpark head: expected confidence_head_with_markov beside enable_confidence_head, found none")
    if is_there and with_markov and not rank:
        raise ValueError(
            "DSpark head: expected markov_rank above 0 beside confidence_head_with_markov true, whose confidence head "
            "reads the embeddings of the Markov head, found 0"
        )
    return StatedConfidence(is_there, with_markov)


def confidence_told(fields: Mapping[str, Any], choices: HeadChoices) -> tuple[str, ...]:
    """What becomes of the confidence head in the file of a DSpark head; nothing where it has none.

    Raises:
        ValueError: the cell asks for one that is not there, or the file does not say which it is.
    """
    is_there, is_asked = stated_confidence(fields).enable_confidence_head, choices.confidence is not Confidence.row
    if is_asked and not is_there:
        raise ValueError(
            f"expected a DSpark head with a confidence head (enable_confidence_head true) for "
            f"drafter.confidence={choices.confidence.value}, found none; use drafter.confidence=row"
        )
    if is_asked or not is_there:
        return ()
    return (
        "its confidence head decides nothing: drafter.confidence=head or survival with drafting.min_confidence lets it "
        "end drafts",
    )


class StatedSelector(NamedTuple):
    """What the file of a DFlash2 head says of its convolutions and of its selector."""

    conv_kernel_size: int
    """Places that a convolution sums, its own first."""
    conv_group_size: int
    """Components of a state with the same part of a kernel that follows from the state."""
    selector_rank: int
    selector_top_k: int
    """Candidates of a place."""


def stated_selector(fields: Mapping[str, Any]) -> StatedSelector:
    """Convolutions and selector in the file of a DFlash2 head; raises ValueError where it does not say."""
    own, name = block_fields(fields), NAMES["dflash2"]
    found = StatedSelector(*(_number(name, own, field, least=1) for field in StatedSelector._fields))
    layer = own.get("transformer_layer_config")
    layer = layer if isinstance(layer, Mapping) else own
    hidden_size, vocab_size = layer.get("hidden_size"), layer.get("vocab_size")
    if type(hidden_size) is int and hidden_size % found.conv_group_size:
        raise ValueError(
            f"{name} head: expected conv_group_size to divide hidden_size {hidden_size}, found {found.conv_group_size}"
        )
    if type(vocab_size) is int and found.selector_top_k > vocab_size:
        raise ValueError(
            f"{name} head: expected selector_top_k of at most {vocab_size}, its vocabulary, found "
            f"{found.selector_top_k}"
        )
    return found


def stated_windows(fields: Mapping[str, Any]) -> tuple[int | None, ...]:
    """For each layer of a DFlash2 head, how many places back it attends to; None for all.

    Raises ValueError where a layer has a window of no size, or one in which places of a block see none behind them.
    """
    nested = fields.get("transformer_layer_config")
    layer = nested if isinstance(nested, Mapping) else fields
    types = layer.get("layer_types") or ["full_attention"] * (layer.get("num_hidden_layers") or 0)
    if "sliding_attention" not in types:
        return (None,) * len(types)
    window = layer.get("sliding_window")
    if type(window) is not int or window < 1:
        raise ValueError(f"expected sliding_window as a number of places beside sliding_attention, found {window!r}")
    sees_all = block_fields(fields).get("is_causal") is False or fields.get("sliding_window_non_causal") is True
    if not sees_all:
        raise ValueError(
            "expected is_causal false (or sliding_window_non_causal true, as speculators writes) beside windows, found "
            "none: readers then let a place of a block see none behind it, which this version does not run"
        )
    return tuple(window if each == "sliding_attention" else None for each in types)


def windows_told(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """What is taken of the windows of a DFlash2 head; nothing where its file leaves no doubt."""
    nested = fields.get("transformer_layer_config")
    layer = nested if isinstance(nested, Mapping) else fields
    found = {window for window in stated_windows(fields) if window is not None}
    if not found or layer.get("use_sliding_window") is True:
        return ()
    return (
        f"its layer_types ask for windows of {found.pop()} places, which are taken as the code of its authors for MLX "
        "does, while transformers drops them without use_sliding_window",
    )


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
