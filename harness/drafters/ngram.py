"""Prompt lookup: what followed the last tokens where they occurred before (A. Saxena, 2023). No model."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from harness.config.drafter import DrafterConfig, DrafterTraits
from harness.config.models import require

if TYPE_CHECKING:
    from harness.config.cell import CellConfig
    from harness.drafters.protocol import Drafter
    from harness.drafters.registry import DrafterSetup


class NgramMatch(Enum):
    """Which of several occurrences of a suffix is continued."""

    latest = "latest"
    earliest = "earliest"


@dataclass(frozen=True)
class Ngram(DrafterConfig):
    ngram_max: int = 4
    """Longest suffix that is looked up in the sequence so far."""
    ngram_min: int = 2
    """Shortest suffix that is looked up."""
    ngram_match: NgramMatch = NgramMatch.latest
    """Which occurrence of the longest suffix counts: the latest, or, as in vLLM, the earliest."""
    traits = DrafterTraits(is_one_hot=True, drafts_trees=True, name="{kind} ({ngram_min} to {ngram_max})")

    def __post_init__(self) -> None:
        fits = 1 <= self.ngram_min <= self.ngram_max
        require(fits, "drafter.ngram_min", "1 <= ngram_min <= ngram_max", self.ngram_min)

    def refusal(self, cell: CellConfig) -> str | None:
        num_tokens = cell.drafting.num_speculative_tokens
        has_one_length = self.ngram_min == self.ngram_max <= num_tokens
        if cell.is_served and cell.server.traits.looks_up_one_length and not has_one_length:
            return (
                f"server={cell.server.engine.value} looks up n-grams of one length and drafts nothing with K below it; "
                "use drafter.ngram_min = drafter.ngram_max <= drafting.num_speculative_tokens, found "
                f"{self.ngram_min}, {self.ngram_max} and {num_tokens}"
            )
        return None

    def build(self, setup: DrafterSetup) -> Drafter:
        from harness.drafters.dynamic_tree import DynamicTreeShape
        from harness.drafters.ngram_run import NgramDrafter, NgramTreeDrafter

        earliest = self.ngram_match is NgramMatch.earliest
        if setup.tree is None:
            return NgramDrafter(self.ngram_max, self.ngram_min, earliest)
        assert isinstance(setup.tree, DynamicTreeShape), "its trees are those that it finds"
        return NgramTreeDrafter(self.ngram_max, self.ngram_min, setup.tree, earliest)
