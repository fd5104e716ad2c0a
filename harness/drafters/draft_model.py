"""A small language model of its own (arXiv 2211.17192), with the target's tokenizer or with another one.

With another tokenizer (`vocabulary=shared`) it drafts by token-level intersection (arXiv 2502.05202; vLLM PR 38174,
transformers' universal assisted decoding): its law restricted to the tokens that both have, which is the law that
verification reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from harness.config.drafter import DrafterTraits, NetworkConfig
from harness.config.models import Weights, require_shape_alone

if TYPE_CHECKING:
    from pathlib import Path

    from harness.config.cell import CellConfig
    from harness.drafters.protocol import Drafter
    from harness.drafters.registry import DrafterSetup
    from harness.models.target import TargetModel


class Vocabulary(Enum):
    """Which tokens a draft model drafts."""

    same = "same"
    """Its own, whose ids mean what the target's do."""
    shared = "shared"
    """Those of its tokens that the target has too, whatever their ids."""


@dataclass(frozen=True)
class DraftModel(NetworkConfig):
    shape: str | None = None
    """Sizes of a public model, by name, instead of a path; needs weights=random."""
    vocabulary: Vocabulary = Vocabulary.same
    """same: its token ids must mean what the target's do; shared: it may have another tokenizer, and drafts the tokens
    that both have."""
    traits = DrafterTraits(has_model=True, drafts_trees=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_shape_alone("drafter", self.shape, self.path, self.weights)

    @property
    def network_key(self) -> tuple[object, ...]:
        return (self.vocabulary,)

    def refusal(self, cell: CellConfig) -> str | None:
        is_shared = self.vocabulary is Vocabulary.shared
        if is_shared and (self.path is None or self.weights is Weights.random or cell.is_served):
            return (
                "drafter.vocabulary=shared compares the tokenizers of two checkpoints on backend=local; use "
                "drafter.path with drafter.weights=checkpoint, or drafter.vocabulary=same"
            )
        has_sizes = self.path is not None or self.shape is not None
        if self.weights is Weights.random and not has_sizes and not cell.target.is_built_in:
            return (
                "drafter=draft_model with drafter.weights=random needs drafter.shape or drafter.path: its sizes do not "
                f"follow from those of target {cell.target.name}"
            )
        return super().refusal(cell)

    def build(self, setup: DrafterSetup) -> Drafter:
        from harness.drafters.tree import model_drafter

        return model_drafter(setup)

    def load(self, folder: Path, target: TargetModel) -> TargetModel:
        from harness.drafters.registry import accepted_of
        from harness.models.draft_model import load_draft_model

        shares_tokens = self.vocabulary is Vocabulary.shared
        return load_draft_model(folder, target, accepted=accepted_of(self), shares_tokens=shares_tokens)

    def random(self, target: TargetModel) -> TargetModel:
        from harness.drafters.registry import accepted_of
        from harness.models.draft_model import random_draft_model
        from harness.models.random_target import architecture
        from harness.models.zoo import zoo_path

        is_ours = self.path is None and self.shape is None
        path = zoo_path("draft_model", with_weights=False) if is_ours else self.path
        given = architecture(path, self.shape, revision=self.revision, accepted=accepted_of(self))
        return random_draft_model(given, self.shape or given.source.parent.name, target)
