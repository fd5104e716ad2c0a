"""Any OpenAI-compatible server, for runs without drafts: it tells nothing of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.config.server import EngineTraits, ServerConfig

if TYPE_CHECKING:
    from harness.backends.server.adapter import Adapter
    from harness.config.cell import CellConfig


@dataclass(frozen=True)
class Plain(ServerConfig):
    traits = EngineTraits(takes_token_ids=False, takes_all_sampling=False, was_run="transformers serve 5.23")

    def adapter(self, cell: CellConfig, drafter: str) -> Adapter:
        from harness.backends.server.adapter import Adapter

        return Adapter(cell, drafter)
