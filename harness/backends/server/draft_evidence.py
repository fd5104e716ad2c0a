"""What a server tells of drafted tokens, by whatever name: for arms that must draft, and baselines that must not.

Adapters turn what their engine tells into our definitions. This module asks only whether anything was drafted, so it
reads the names of all engines: a plain server may be any of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from harness.backends.server.counters import Counters
from harness.backends.server.reply import Reply
from harness.records.counts import DraftCounts, Knowledge
from harness.records.request import FinishReason, RequestRecord
from harness.records.schema import CellRecord

IN_ANSWERS = (
    ("timings", "draft_n"),
    ("metrics", "speculative_decoding", "num_draft_tokens"),
    ("sglext", "spec_tokens_details", "spec_num_proposed_drafts"),
)
"""Where llama.cpp, vLLM and SGLang count the draft tokens of an answer."""
IN_COUNTERS = re.compile(r"spec_decode_(num_draft|drafted)_tokens_total$|spec_verify_calls_total$")
"""Counters of vLLM, llama.cpp, TensorRT-LLM and SGLang that stand still without drafts."""

NUM_MISSING = "client:num_missing_draft_tokens"
"""Draft tokens by which steps fell short of K, among what is reported of a block."""


def told_of_drafts(replies: Sequence[Reply]) -> dict[str, int]:
    """Draft tokens of some answers, by the engine's own name; empty where no answer tells.

    An answer with llama.cpp's timings and no draft_n in them tells of none.
    """
    found: dict[str, int] = {}
    for reply in replies:
        for part, *path in IN_ANSWERS:
            holder: Any = reply.parts.get(part)
            for name in path[:-1]:
                holder = holder.get(name) if isinstance(holder, Mapping) else None
            if isinstance(holder, Mapping) and (path[-1] in holder or part == "timings"):
                value = holder.get(path[-1])
                found[path[-1]] = found.get(path[-1], 0) + (int(value) if isinstance(value, int | float) else 0)
    return found


def counted_drafts(added: Counters) -> dict[str, int]:
    """The same of what was added to a server's counters; positions are summed over."""
    found: dict[str, int] = {}
    for (name, _), value in added.values.items():
        if IN_COUNTERS.search(name):
            found[name] = found.get(name, 0) + round(value)
    return found


def told_by_record(record: CellRecord) -> tuple[int, dict[str, float]]:
    """Draft tokens of a whole cell, and what its server reported of drafts by its own names.

    Where answers tell of their drafts, these count alone: a server's counters are those of all its clients.
    """
    counts = [item.counts for item in record.requests if item.counts is not None]
    num_drafted = sum(item.num_draft_tokens for item in counts)
    num_drafted += sum(item.num_proposed_tokens for request in record.requests for item in request.rounds)
    told: dict[str, float] = {}
    for block in record.blocks:
        for name, value in block.reported.items():
            of_server = "draft" in name and name != NUM_MISSING
            told |= {name: told.get(name, 0) + value} if of_server else {}
    if record.knowledge in (Knowledge.rounds, Knowledge.requests):
        return num_drafted, told
    of_blocks = sum(item.counts.num_draft_tokens for item in record.blocks if item.counts is not None)
    return round(max(of_blocks, *told.values(), 0)), told


def num_missing_in(request: RequestRecord, depth: int, max_new_tokens: int) -> int:
    """Draft tokens by which the steps of a request, behind its prefill, fell short of K and of what was left to write.

    Args:
        request: a step has room for one draft token less than are left; of counts alone it is the least number.
        depth: K.
        max_new_tokens: limit of the request; a lower one of the server shows where it ended for its length.
    """
    if request.counts is not None:
        return num_missing_of(request.counts, 1, depth)
    left = request.num_output_tokens if request.finish_reason is FinishReason.length else max_new_tokens
    found = 0
    for place, item in enumerate(request.rounds):
        found += max(0, min(depth, left - 1) - item.num_proposed_tokens) if place else 0
        left -= item.num_output_tokens
    return found


def num_missing_of(counts: DraftCounts, num_requests: int, depth: int) -> int:
    """The same of drafts that are known by their counts alone, at least.

    Towards its end an answer has room for K - 1 draft tokens in one step at most, for K - 2 in one, and so on.
    """
    at_the_end = num_requests * (depth * (depth - 1) // 2)
    return max(0, counts.num_drafts * depth - counts.num_draft_tokens - at_the_end)


def evidence(told: Mapping[str, float]) -> str:
    """What a refusal shows."""
    return ", ".join(f"{name} = {value:g}" for name, value in told.items())
