"""The multi-token-prediction layer that comes in the target's own folder (arXiv 2412.19437)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.config.drafter import DrafterTraits
from harness.drafters.head import HeadConfig
from harness.models.model_types import MODEL_TYPES

if TYPE_CHECKING:
    from pathlib import Path

    from harness.models.general.target import GeneralTarget
    from harness.models.head import Head
    from harness.models.target import TargetModel


@dataclass(frozen=True)
class Mtp(HeadConfig):
    traits = DrafterTraits(has_model=True, drafts_trees=True, in_target=True)

    def load(self, folder: Path, target: TargetModel) -> Head:
        from harness.drafters.registry import accepted_of

        general, accepted = _run_by_transformers(target), accepted_of(self)
        if general is None:
            from harness.models.mtp import load_mtp

            return load_mtp(folder, target, accepted=accepted)
        from harness.models.general.mtp import load_general_mtp

        return load_general_mtp(folder, general, accepted=accepted)

    def random(self, target: TargetModel) -> Head:
        general = _run_by_transformers(target)
        if general is None:
            from harness.models.random_head import random_mtp

            return random_mtp(target)
        from harness.models.general.mtp import random_general_mtp

        return random_general_mtp(general)


def _run_by_transformers(target: TargetModel) -> GeneralTarget | None:
    """A target whose MTP layer is of transformers' code too; None where it is made of layers of our own."""
    if target.config.model_type in MODEL_TYPES:
        return None
    from harness.models.general.target import GeneralTarget

    assert isinstance(target, GeneralTarget), "other types run by transformers' code alone"
    return target
