"""What a subject owes besides the law: `verify` leaves its inputs as they were, and results have the contract's types.

Engines read the inputs again, and the next round its cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from harness.config.schema import SettingsError
from kernels.contract import Draft

Result = TypeVar("Result")


def returned(function: str, found: object, kind: type[Result], **shapes: tuple[int, ...]) -> Result:
    """The result of a function of the subject, checked.

    Args:
        function: its name.
        found: what it returned.
        kind: what it must be, a type of kernels.contract.
        **shapes: of fields that must be tensors, by name.

    Raises:
        SettingsError: it is something else; the message says what.
    """
    expected = f"--subject: expected {function} to return a kernels.contract.{kind.__name__}"
    if not isinstance(found, kind):
        raise SettingsError(f"{expected}, found a {type(found).__name__} (see harness/checks/certification/subject.py)")
    for name, shape in shapes.items():
        field = getattr(found, name)
        if not isinstance(field, Tensor):
            raise SettingsError(f"{expected} whose {name} is a tensor, found a {type(field).__name__}")
        if tuple(field.shape) != shape:
            raise SettingsError(f"{expected} whose {name} is of shape {shape}, found {tuple(field.shape)}")
    return found


def copied_inputs(target_logits: Tensor, draft: Draft) -> list[Tensor]:
    """Copies of what `verify` gets of a round: the target's rows, the drafts, their cache and its mapping."""
    return [item.clone() for item in _inputs(target_logits, draft)]


def num_overwritten(copies: Sequence[Tensor], target_logits: Tensor, draft: Draft) -> int:
    """How many of the inputs differ in some bit from their copies, which `copied_inputs` made before the call."""
    pairs = zip(copies, _inputs(target_logits, draft), strict=True)
    # as bytes, because NaN is no number that equals itself
    return sum(not torch.equal(copy.view(torch.uint8), now.view(torch.uint8)) for copy, now in pairs)


def _inputs(target_logits: Tensor, draft: Draft) -> list[Tensor]:
    given = (target_logits, draft.token_ids, draft.num_draft_tokens, draft.logits, draft.idx_mapping)
    return [item for item in given if item is not None]
