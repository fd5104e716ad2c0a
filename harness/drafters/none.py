"""No drafts: the autoregressive baseline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.config.drafter import DrafterConfig, DrafterTraits

if TYPE_CHECKING:
    from harness.drafters.protocol import Drafter
    from harness.drafters.registry import DrafterSetup


@dataclass(frozen=True)
class NoDrafts(DrafterConfig):
    traits = DrafterTraits(is_one_hot=True)

    def build(self, setup: DrafterSetup) -> Drafter:
        from harness.drafters.none_run import NoDrafter

        return NoDrafter()
