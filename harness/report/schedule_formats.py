"""A schedule of depths in the formats of engines: ours, vLLM's and SGLang's.

What each says was read in the packages, and their own readers were called on such files (CHECKED_AGAINST); no engine
was run with them.
"""

from __future__ import annotations

import json
from typing import Any

from harness.config.depth import DepthTable, depths_name

CHECKED_AGAINST = (
    "Checked against vLLM 0.33.0 (vllm/v1/spec_decode/dynamic/utils.py) and SGLang 0.5.23 "
    "(sglang/srt/speculative/adaptive_spec_params.py), whose own readers took the same depths from such files. Neither "
    "engine was run with one here."
)
ABOUT_VLLM = (
    "`--speculative-config` takes both keys beside method and model. The batch size there is the number of requests "
    "scheduled in a step, those whose prompts are read included; ranges include both ends, and the last depth goes on "
    "beyond its range. With runner V1 vLLM falls back to piecewise CUDA graphs, which costs more than a schedule may "
    "bring (VLLM_USE_V2_MODEL_RUNNER=1 keeps them); with data parallelism it ignores the schedule."
)
ABOUT_SGLANG = (
    "`--speculative-adaptive --speculative-adaptive-config FILE --speculative-eagle-topk 1 "
    "--speculative-num-steps {most} --speculative-num-draft-tokens {tokens}`, for EAGLE and "
    "EAGLE3 alone. Each batch size has one candidate, so that "
    "SGLang's own average decides nothing; it rounds the batch up to a CUDA-graph size before it looks it up."
)


def ours(table: DepthTable) -> str:
    """The value of `drafting.depth`."""
    return depths_name(table) if len(table) > 1 else str(table[0][1])


def vllm(table: DepthTable, largest: int) -> dict[str, Any]:
    """Keys of vLLM's speculative config.

    Args:
        table: from batch size 1 on.
        largest: the largest batch size that was tuned.

    Raises:
        ValueError: no batch size drafts, for which vLLM has no such form.
    """
    if not any(depth for _, depth in table):
        raise ValueError("expected a depth above 0 at some batch size, found none: start vLLM without speculation")
    ends = [size - 1 for size, _ in table[1:]] + [max(largest, table[-1][0])]
    ranges = [[size, end, depth] for (size, depth), end in zip(table, ends, strict=True)]
    most = max(depth for _, depth in table)
    if len(table) == 1:
        return {"num_speculative_tokens": most}
    return {"num_speculative_tokens": most, "num_speculative_tokens_per_batch_size": ranges}


def sglang(table: DepthTable) -> dict[str, Any]:
    """SGLang's adaptive configuration: from each batch size on, one candidate."""
    return {str(size): {"candidate_steps": [depth]} for size, depth in table}


def files(table: DepthTable, largest: int) -> dict[str, str]:
    """Name of a file -> its text; none for vLLM where no batch size drafts."""
    found = {"depth.txt": f"drafting.depth={ours(table)}\n", "sglang.json": _text(sglang(table))}
    if any(depth for _, depth in table):
        found["vllm.json"] = _text(vllm(table, largest))
    return found


def about_sglang(table: DepthTable) -> str:
    """How SGLang is started with it."""
    most = max(depth for _, depth in table)
    return ABOUT_SGLANG.format(most=most, tokens=most + 1)


def _text(content: dict[str, Any]) -> str:
    return json.dumps(content) + "\n"
