"""SGLang 0.5.23: its adapter is written from its source, not run against it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.config.drafter import DrafterKind
from harness.config.server import ALL_EDITS, AT_ZERO, GREEDY, SAMPLED, WITH_WEIGHTS, EngineTraits, ServerConfig
from kernels.methods import VerificationMethod

if TYPE_CHECKING:
    from harness.backends.server.adapter import Adapter
    from harness.config.cell import CellConfig


@dataclass(frozen=True)
class Sglang(ServerConfig):
    traits = EngineTraits(
        (*WITH_WEIGHTS, DrafterKind.ngram),
        {
            **AT_ZERO,
            VerificationMethod.strict: GREEDY,
            VerificationMethod.probabilistic: SAMPLED,
            VerificationMethod.block: SAMPLED,
        },
        edits=ALL_EDITS,
        edits_by_round=True,
    )

    def adapter(self, cell: CellConfig, drafter: str) -> Adapter:
        from harness.backends.server.adapters.sglang_run import SglangAdapter

        return SglangAdapter(cell, drafter)
