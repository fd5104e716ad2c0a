"""TensorRT-LLM 1.2: written from its source, not run against it."""

from __future__ import annotations

import json
from typing import Any

from harness.backends.server.adapter import Adapter
from harness.backends.server.counters import Counters
from harness.config.drafter import DrafterKind
from harness.config.sampling import SamplingSettings
from harness.records.counts import DraftCounts

DECODING_TYPES = {
    DrafterKind.eagle: "Eagle",
    DrafterKind.eagle3: "Eagle3",
    DrafterKind.mtp: "MTP",
    DrafterKind.draft_model: "DraftTarget",
    DrafterKind.ngram: "NGram",
}
DRAFTED = "trtllm_spec_decode_drafted_tokens_total"
ACCEPTED = "trtllm_spec_decode_accepted_tokens_total"


class TensorrtLlmAdapter(Adapter):
    """One cell on TensorRT-LLM: counts by position of completed requests, drafted and accepted."""

    version_path = "/version"
    metrics_path = "/prometheus/metrics"

    def config_file(self) -> str:
        # JSON is YAML too; prompts are reused across requests unless it is told
        options: dict[str, Any] = {"kv_cache_config": {"enable_block_reuse": False}}
        if self.cell.is_baseline:
            return json.dumps(options)
        kind = DrafterKind(self.cell.drafter.kind.value)
        config: dict[str, Any] = {"decoding_type": DECODING_TYPES[kind], "max_draft_len": self.num_tokens}
        if self.cell.drafter.has_model and kind is not DrafterKind.mtp:
            config["speculative_model"] = self.drafter
        return json.dumps(options | {"speculative_config": config})

    def request_fields(self, sampling: SamplingSettings, seed: int) -> dict[str, Any]:
        return {**self.sampling_fields(sampling, no_top_k=0), "seed": seed % 2**31}

    def counts(self, added: Counters) -> DraftCounts | None:
        return counts_told(added)


def counts_told(added: Counters) -> DraftCounts | None:
    """The drafts of completed requests by the counters of a server; None where it has none."""
    drafted, accepted = added.by_position(DRAFTED), added.by_position(ACCEPTED)
    if not drafted:
        return None
    return DraftCounts(drafted[0], sum(drafted), sum(accepted), drafted, accepted)
