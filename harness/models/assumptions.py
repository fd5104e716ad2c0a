"""What is taken where the files of a model do not say, one sentence each: for the record, the report and `run --list`.

The loader of a kind and `assumed_of_cell` ask the same functions. JSON only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.models.described import described_drafter
from harness.settings.cell import CellConfig
from harness.settings.models import DrafterKind


def assumed_of_head(kind: str, fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Of a draft head.

    Args:
        kind: of the drafter.
        fields: of its config.json.
    """
    found = []
    # of P-EAGLE heads all readers take false
    is_asked = kind == DrafterKind.eagle3.value and "transformer_layer_config" in fields
    if is_asked and fields.get("norm_before_residual") is None:
        found.append(
            "its file does not state norm_before_residual, and false is taken as speculators does, while vLLM "
            "takes true"
        )
    return tuple(found)


def by_role(target: Sequence[str], drafter: Sequence[str]) -> tuple[str, ...]:
    """What was assumed of the models of a cell, each with whose file it is."""
    return (*(f"target: {text}" for text in target), *(f"drafter: {text}" for text in drafter))


def assumed_of_cell(cell: CellConfig) -> tuple[str, ...]:
    """What is known without weights: nothing of what is not on this machine, or of models that a server loads."""
    described = None if cell.is_served else described_drafter(cell.drafter)
    return by_role((), () if described is None else assumed_of_head(cell.drafter.kind.value, described.fields))
