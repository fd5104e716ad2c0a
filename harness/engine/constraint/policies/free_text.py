"""No answer is asked for: there is no grammar, and the end of reasoning is not looked for."""

from __future__ import annotations

from dataclasses import dataclass

from harness.config.constraint import ConstraintConfig


@dataclass(frozen=True)
class FreeText(ConstraintConfig):
    """Asks nothing of the output."""
