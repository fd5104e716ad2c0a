"""What the first place of a block predicts, of DFlash heads and their like, from what config.json says. JSON only.

The first place holds the last token that is known, the anchor. In the original layout and in that of speculators it
predicts nothing, and masked places give the draft tokens (1 + N); heads trained by DeepSpec draft from it on, so that
each place predicts the token after its own. Read the other way, every draft is off by one position.

    sample_from_anchor or query_zero_predicts_next, at the top level or in dflash_config    says which
    the layout of speculators without them                       masked places: the default of its class
    dflash_config without them, of an architecture
        named ...DFlashDraftModel (z-lab, SpecForge, ModelOpt, AngelSlim)     masked places
    any other file without them                                  refused until drafter.anchor is given
    DSpark without them                                          the first draft token: its definition
    DFlash2                                                      masked places; a file that says otherwise is refused

Sources: z-lab/dflash model.py; speculators DFlashSpeculatorConfig; DeepSpec dspark/evaluator.py;
SpecForge OnlineDSparkModel; speculators DFlash2DraftModel; the fields' names in SGLang pull request 40203, 2026.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from harness.config.models import Anchor

NAMES = ("sample_from_anchor", "query_zero_predicts_next")
NESTED = "dflash_config"
SPECULATORS = "transformer_layer_config"
ARCHITECTURE = "DFlashDraftModel"


class StatedAnchor(NamedTuple):
    """Where a head's drafts begin."""

    anchor: Anchor
    assumed: tuple[str, ...]
    """What was taken for granted, one sentence each."""


def anchor_of(fields: Mapping[str, Any], given: Anchor | None = None, kind: str = "dflash") -> StatedAnchor:
    """Where the drafts of a head begin.

    Args:
        fields: of its config.json.
        given: by the user, which counts in place of what the file says.
        kind: of the drafter: dflash, dspark or dflash2.

    Raises:
        ValueError: the file contradicts itself, or may mean either.
    """
    stated = _stated(fields)
    if given is not None:
        found = [f"{name} {value}".lower() for name, value in stated.items() if _meant(value) is not given]
        told = f"drafter.anchor={given.value} counts, and not {' and '.join(found)} of its file"
        return StatedAnchor(given, (told,) if found else ())
    if len(set(stated.values())) > 1:
        found = [f"{name} {value}".lower() for name, value in stated.items()]
        raise ValueError(
            f"expected one layout of its blocks, found {' and '.join(found)}; say which by drafter.anchor=mask or first"
        )
    if kind == "dflash2":
        for name, value in stated.items():
            if value:
                raise ValueError(f"expected a DFlash2 head whose drafts begin behind the anchor, found {name} true")
        return StatedAnchor(Anchor.mask, ())
    if stated:
        return StatedAnchor(_meant(next(iter(stated.values()))), ())
    if kind == "dspark":
        return StatedAnchor(Anchor.first, ())
    if SPECULATORS in fields or _is_original(fields):
        told = "its file does not say where in a block its drafts begin, and drafter.anchor=mask is taken"
        return StatedAnchor(Anchor.mask, (told,))
    raise ValueError(
        f"expected {NAMES[0]} or {NAMES[1]}, which say what the first place of a block predicts, or an architecture "
        f"...{ARCHITECTURE}, found architectures {fields.get('architectures')!r}; say by drafter.anchor=mask that it "
        f"predicts nothing, or by drafter.anchor=first that it predicts the first draft token, as of heads trained by "
        f"DeepSpec"
    )


def _stated(fields: Mapping[str, Any]) -> dict[str, bool]:
    """What a file says, by place."""
    nested = fields.get(NESTED)
    sections = {"": fields, f"{NESTED}.": nested if isinstance(nested, Mapping) else {}}
    found = {f"{prefix}{name}": section.get(name) for prefix, section in sections.items() for name in NAMES}
    for name, value in found.items():
        if value is not None and type(value) is not bool:
            raise ValueError(f"expected {name} as true or false, found {value!r}")
    return {name: value for name, value in found.items() if value is not None}


def _meant(value: bool) -> Anchor:
    return Anchor.first if value else Anchor.mask


def _is_original(fields: Mapping[str, Any]) -> bool:
    names = fields.get("architectures")
    return NESTED in fields and isinstance(names, list) and bool(names) and str(names[0]).endswith(ARCHITECTURE)
