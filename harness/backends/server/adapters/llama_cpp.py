"""llama.cpp's server; `harness.settings.server` says what it was run against.

It drafts only by --spec-type: a draft model alone (-md) is loaded and never used. Drafts are the drafter's most
probable tokens; the target's own draw verifies them, whatever the temperature, which is `strict`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.backends.server.adapter import Adapter
from harness.backends.server.reply import Reply
from harness.settings.models import DrafterKind
from harness.settings.sampling import SamplingSettings

COUNTED = ("draft_n", "draft_n_accepted")


class LlamaCppAdapter(Adapter):
    """One cell on llama.cpp.

    An answer's timings hold draft_n and draft_n_accepted, but not the number of steps, so drafts are not known in our
    definitions; what it counts is kept by its own names.
    """

    # announces keep-alive, and closes after a streamed answer
    keeps_connections = False

    def speculation(self) -> tuple[str, ...]:
        if self.cell.is_baseline:
            return ()
        if self.cell.drafter.kind is DrafterKind.ngram:
            option = "--spec-ngram-simple"
            sizes = (f"{option}-size-n", str(self.cell.drafter.ngram_max), f"{option}-size-m", str(self.num_tokens))
            return "--spec-type", "ngram-simple", *sizes, f"{option}-min-hits", "1"
        return "-md", self.drafter, "--spec-type", "draft-simple", "--spec-draft-n-max", str(self.num_tokens)

    def request_fields(self, sampling: SamplingSettings, seed: int) -> dict[str, Any]:
        fields = self.sampling_fields(sampling, no_top_k=0)
        # its own name for repetition_penalty
        fields["repeat_penalty"] = fields.pop("repetition_penalty")
        return {**fields, "seed": seed % 2**31, "cache_prompt": False, "timings_per_token": True}

    def reported(self, replies: Sequence[Reply]) -> dict[str, float]:
        timings = [reply.parts.get("timings", {}) for reply in replies]
        return {name: float(sum(item.get(name, 0) for item in timings)) for name in COUNTED}
