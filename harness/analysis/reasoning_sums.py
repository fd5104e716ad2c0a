"""What the requests of a cell did before and after the end of their reasoning, summed per request.

A round is of one of three phases: before the end of reasoning, the round in which it came, and after it. Draft tokens
are told apart one by one: those up to the marker are before, those beyond it after, also where one round has both.
This module knows records; it does not know which sums a metric divides.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from harness.records.request import CutReason, FinishReason, RequestRecord

Floats = NDArray[np.float64]
PHASES = ("before", "boundary", "after")
OF_PHASE = ("num_rounds", "num_tokens", "time_s", "host_us")
OF_TOKENS = ("num_draft_tokens", "num_accepted_tokens")
OF_REQUEST = ("num_finished", "num_judged", "num_valid", "num_length_cut", "num_unanswered", "num_refused_tokens")
OF_PATH = ("num_whole_rounds", "num_guarded_rounds", "num_held_steps")
"""Rounds of steps that ran as one graph, those in which the host took part, deferred steps."""
NAMES = (
    *OF_REQUEST,
    *OF_PATH,
    *(f"{name}_{phase}" for name in OF_TOKENS for phase in ("before", "after")),
    *(f"{name}_{phase}" for name in OF_PHASE for phase in PHASES),
)


def has_boundary(requests: Sequence[RequestRecord]) -> bool:
    """Whether an end of reasoning was looked for."""
    return any(item.num_free_tokens is not None for request in requests for item in request.rounds)


def boundary_values(requests: Sequence[RequestRecord]) -> dict[str, Floats]:
    """[R] of every name; nothing where no end of reasoning was looked for."""
    if not has_boundary(requests):
        return {}
    rows = [_of_request(request) for request in requests]
    return {f"boundary_{name}": np.array([row[name] for row in rows], dtype=np.float64) for name in NAMES}


def _of_request(request: RequestRecord) -> dict[str, float]:
    values = dict.fromkeys(NAMES, 0.0)
    is_answered, is_cut = request.num_reasoning_tokens is not None, request.finish_reason is FinishReason.length
    values["num_length_cut"] = is_cut
    values["num_finished"] = is_answered and not is_cut
    values["num_unanswered"] = not is_answered and not is_cut
    values["num_judged"] = is_answered and not is_cut and request.answer_is_valid is not None
    values["num_valid"] = is_answered and not is_cut and request.answer_is_valid is True
    num_tokens = 0
    for number, item in enumerate(request.rounds, start=1):
        phase = _phase(num_tokens, num_tokens + item.num_output_tokens, request.num_reasoning_tokens)
        num_tokens += item.num_output_tokens
        amounts = 1, item.num_output_tokens, item.share_s, item.host_us
        for name, amount in zip(OF_PHASE, amounts, strict=True):
            values[f"{name}_{phase}"] += amount
        path = item.is_whole is True, item.is_whole is False, item.num_held_steps
        for name, amount in zip(OF_PATH, path, strict=True):
            values[name] += amount
        free = item.num_free_tokens or 0
        for name, count in zip(OF_TOKENS, (item.num_draft_tokens, item.num_accepted_tokens), strict=True):
            values[f"{name}_before"] += min(count, free)
            values[f"{name}_after"] += max(count - free, 0)
        ends = number == len(request.rounds) and request.finish_reason is FinishReason.grammar
        if item.cut_reason is CutReason.grammar and not ends:
            values["num_refused_tokens"] += item.num_cut_tokens
    return values


def _phase(start: int, stop: int, num_reasoning_tokens: int | None) -> str:
    """The phase of a round that emitted the tokens from `start` to `stop`."""
    if num_reasoning_tokens is None or stop < num_reasoning_tokens:
        return "before"
    return "boundary" if start < num_reasoning_tokens else "after"
