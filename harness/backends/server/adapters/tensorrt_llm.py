"""TensorRT-LLM 1.2: its adapter is written from its source, not run against it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.config.drafter import DrafterKind
from harness.config.server import ALL_EDITS, AT_ZERO, WITH_WEIGHTS, EngineTraits, ServerConfig

if TYPE_CHECKING:
    from harness.backends.server.adapter import Adapter
    from harness.config.cell import CellConfig


@dataclass(frozen=True)
class TensorrtLlm(ServerConfig):
    traits = EngineTraits((*WITH_WEIGHTS, DrafterKind.ngram), AT_ZERO, edits=ALL_EDITS)

    def adapter(self, cell: CellConfig, drafter: str) -> Adapter:
        from harness.backends.server.adapters.tensorrt_llm_run import TensorrtLlmAdapter

        return TensorrtLlmAdapter(cell, drafter)
