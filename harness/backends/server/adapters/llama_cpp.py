"""llama.cpp's server: written from its source, not run against it (Engine.llama_cpp in settings/server.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.backends.server.adapter import Adapter
from harness.backends.server.reply import Reply
from harness.settings.sampling import SamplingSettings

COUNTED = ("draft_n", "draft_n_accepted")


class LlamaCppAdapter(Adapter):
    """One cell on llama.cpp.

    An answer's timings hold draft_n and draft_n_accepted, but not the number of steps, so drafts are not known in our
    definitions; what it counts is kept by its own names.
    """

    def speculation(self) -> tuple[str, ...]:
        if self.cell.is_baseline:
            return ()
        return "-md", self.drafter, "--spec-draft-n-max", str(self.num_tokens)

    def request_fields(self, sampling: SamplingSettings, seed: int) -> dict[str, Any]:
        fields = self.sampling_fields(sampling, no_top_k=0)
        # its own name for repetition_penalty
        fields["repeat_penalty"] = fields.pop("repetition_penalty")
        return {**fields, "seed": seed % 2**31, "cache_prompt": False, "timings_per_token": True}

    def reported(self, replies: Sequence[Reply]) -> dict[str, float]:
        timings = [reply.parts.get("timings", {}) for reply in replies]
        return {name: float(sum(item.get(name, 0) for item in timings)) for name in COUNTED}
