"""The layers of the target whose states a head reads, from what its config.json says. JSON only.

Everywhere here, as in `drafter.aux_layers`, layer i stands for the state that enters it, counted from 0: that is what
layer i - 1 puts out, and i = number of layers is the state after the last one. Files have two conventions, which the
place and the ids tell apart:

    place                                              ids are of layers    read so by
    eagle_aux_hidden_state_layer_ids                   whose input counts   speculators, vLLM
    eagle_config.eagle_aux_hidden_state_layer_ids
        that begin with 1                              whose output counts  SpecForge, ModelOpt, SGLang
        others                                         whose input counts   SGLang (not ModelOpt)
    target_layer_ids (DeepSpec)                        whose output counts  DeepSpec, vLLM
    aux_hidden_state_layer_ids (heads of blocks)       whose input counts   speculators, vLLM
    dflash_config.target_layer_ids                     whose output counts  z-lab, ModelOpt, vLLM, SGLang
    none, EAGLE-3 and P-EAGLE                          (2, n // 2, n - 3)   all, of a target of n layers
    none, heads of blocks with dflash_config           evenly spread        z-lab, SGLang

Where readers disagree, or nothing is said, a sentence of the report tells what was taken. Sources: vLLM
get_eagle3_aux_layers_from_config and SGLang set_eagle3_layers_to_capture (pull request 25454), 2026.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from harness.models.checkpoint_kind import BLOCK_HEADS

EAGLE3 = "eagle_aux_hidden_state_layer_ids"
NESTED = "eagle_config"
DEEPSPEC = "target_layer_ids"
DFLASH = "aux_hidden_state_layer_ids"
DFLASH_NESTED = "dflash_config"


class AuxLayers(NamedTuple):
    """What a head reads of its target."""

    layers: tuple[int, ...]
    """Whose entering states are read."""
    assumed: tuple[str, ...]
    """What was taken for granted, one sentence each."""


class _Stated(NamedTuple):
    """Ids in a file."""

    place: str
    ids: tuple[int, ...]
    of_outputs: bool

    @property
    def layers(self) -> tuple[int, ...]:
        return tuple(index + self.of_outputs for index in self.ids)


def aux_layers_of(
    kind: str, fields: Mapping[str, Any], num_layers: int, given: Sequence[int] | None = None
) -> AuxLayers:
    """The layers that a head reads.

    Args:
        kind: of the drafter: eagle3, peagle, dflash, dspark or dflash2.
        fields: of its config.json.
        num_layers: of the target.
        given: the user's, which count in place of the file's.

    Raises:
        ValueError: they are not layers of the target, the file's are no list of layers or contradict each other, or
            they are missing where there is no default.
    """
    stated = _stated(kind, fields)
    if given is not None:
        layers = checked_layers(kind, tuple(given), num_layers)
        others = [item for item in stated if item.layers != layers]
        told = f"drafter.aux_layers={list(layers)} counts, and not {{}} of its file"
        return AuxLayers(layers, tuple(told.format(f"{item.place} {list(item.ids)}") for item in others))
    if len({item.layers for item in stated}) > 1:
        found = " and ".join(f"{item.place} {list(item.ids)}" for item in stated)
        raise ValueError(
            f"expected one list of auxiliary layers, found {found}, which are not the same layers of the target; name "
            f"those whose entering states count by drafter.aux_layers"
        )
    if stated:
        return AuxLayers(checked_layers(kind, stated[0].layers, num_layers), _doubt(stated[0], num_layers))
    layers = checked_layers(kind, _default(kind, fields, num_layers), num_layers)
    return AuxLayers(
        layers,
        (f"its file names no auxiliary layers, and {list(layers)} are taken, which are usual; see drafter.aux_layers",),
    )


def checked_layers(kind: str, layers: tuple[int, ...], num_layers: int) -> tuple[int, ...]:
    """The layers; raises ValueError where a target of so many has none of these, or one is named twice."""
    # of heads that fill blocks none takes the state after the last layer
    last = num_layers - (kind in BLOCK_HEADS)
    if len(set(layers)) != len(layers) or not all(0 <= index <= last for index in layers):
        raise ValueError(
            f"expected different layers from 0 to {last}, of a target of {num_layers}, whose entering states are read, "
            f"found {list(layers)}; the head was made for another target, or drafter.aux_layers names others"
        )
    return layers


def default_aux_layers(num_layers: int) -> tuple[int, ...]:
    """The layers of a target that EAGLE-3 and P-EAGLE heads read when their file does not say."""
    return (2, num_layers // 2, num_layers - 3)


def _stated(kind: str, fields: Mapping[str, Any]) -> list[_Stated]:
    places = [(DEEPSPEC, fields.get(DEEPSPEC), True)]
    if kind in BLOCK_HEADS:
        nested = fields.get(DFLASH_NESTED)
        places.append((DFLASH, fields.get(DFLASH), False))
        places.append((f"{DFLASH_NESTED}.{DEEPSPEC}", _of(nested, DEEPSPEC), True))
    else:
        ids = _of(fields.get(NESTED), EAGLE3)
        places.append((EAGLE3, fields.get(EAGLE3), False))
        places.append((f"{NESTED}.{EAGLE3}", ids, isinstance(ids, list) and ids[:1] == [1]))
    # an empty list is none
    return [_Stated(place, _layers(place, ids), is_output) for place, ids, is_output in places if ids not in (None, [])]


def _of(section: object, name: str) -> object:
    return section.get(name) if isinstance(section, Mapping) else None


def _layers(place: str, ids: object) -> tuple[int, ...]:
    if not isinstance(ids, list) or any(type(index) is not int for index in ids):
        raise ValueError(f"expected {place} as a list of layers, found {ids!r}")
    return tuple(ids)


def _doubt(stated: _Stated, num_layers: int) -> tuple[str, ...]:
    """Where readers of a file disagree, what was taken."""
    later = [index + 1 for index in stated.ids]
    # no layer has this number, so that its output cannot be meant
    if max(later) > num_layers:
        return ()
    named = f"{stated.place} {list(stated.ids)}"
    if stated.place == f"{NESTED}.{EAGLE3}" and not stated.of_outputs:
        return (
            f"{named} does not begin with 1 and is taken for layers whose input counts, as SGLang does, while ModelOpt "
            f"takes their output, which is drafter.aux_layers={later}",
        )
    if stated.place == EAGLE3 and tuple(later) == default_aux_layers(num_layers):
        return (
            f"{named} is taken for layers whose input counts, as vLLM does; if their output was meant, which would be "
            f"the usual layers, it is drafter.aux_layers={later}",
        )
    return ()


def _default(kind: str, fields: Mapping[str, Any], num_layers: int) -> tuple[int, ...]:
    if kind not in BLOCK_HEADS:
        return default_aux_layers(num_layers)
    number = fields.get("num_hidden_layers")
    if DFLASH_NESTED not in fields or type(number) is not int or number < 1:
        raise ValueError(
            f"expected {DFLASH} as a list of layers, found none; name those whose entering states count by "
            f"drafter.aux_layers"
        )
    if number == 1:
        return (num_layers // 2 + 1,)
    return tuple(round(1 + index * (num_layers - 4) / (number - 1)) + 1 for index in range(number))
