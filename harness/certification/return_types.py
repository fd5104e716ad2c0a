"""What a subject's functions return, held against the contract: the type, and the shapes of fields that are read."""

from __future__ import annotations

from typing import TypeVar

from torch import Tensor

from harness.settings.schema import SettingsError

Result = TypeVar("Result")


def returned(function: str, found: object, kind: type[Result], **shapes: tuple[int, ...]) -> Result:
    """What a function of the subject returned, if it may.

    Args:
        function: its name.
        found: what it returned.
        kind: what it must be, a type of kernels.contract.
        shapes: of fields that must be tensors.

    Raises:
        SettingsError: it is something else; the message says what.
    """
    expected = f"certify.subject: expected {function} to return a kernels.contract.{kind.__name__}"
    if not isinstance(found, kind):
        raise SettingsError(f"{expected}, found a {type(found).__name__} (see harness/certification/subject.py)")
    for name, shape in shapes.items():
        field = getattr(found, name)
        if not isinstance(field, Tensor):
            raise SettingsError(f"{expected} whose {name} is a tensor, found a {type(field).__name__}")
        if tuple(field.shape) != shape:
            raise SettingsError(f"{expected} whose {name} is of shape {shape}, found {tuple(field.shape)}")
    return found
