"""Answers that loop: a model that repeats itself is easy to draft for, so that loops inflate acceptance and speed.

An answer loops if fewer than half of the 4-grams of its last 200 tokens are distinct. One that ends by itself, or at a
stop string, below 64 tokens does not. Neither one that is cut below 64 tokens can be judged nor one whose tokens a
server does not give: a share is one of all others.
A loop of p tokens that fills these 200 has p distinct 4-grams of 197, so that any loop of up to 98 tokens is found; one
that has begun within them is found once it makes up half of them and its own length. A count that changes from one
repetition to the next ("#### 7 ... #### 8 ...") hides four 4-grams of each, not the rest.

Why one half: loops lie below it, and hardly anything else does.

| answers, or pieces of 200 tokens | below one half |
|---|---|
| SmolLM2-135M-Instruct, temperature 0, 30 questions of GSM8K, up to 400 tokens | 7, which loop and did not end |
| built-in model, its prompts, temperature 0 and 1: 48 of 160 answers have 64 tokens | 10: 9 loop, 1 writes digits |
| built-in model, JSON of reasoning_json, temperature 1: 32 of 80 answers have 64 tokens | 0 |
| written by people: 951 of prose, dialogues and solutions of GSM8K, held-out rows of its corpus | 0 |
| written by people: 777 of code and manuals, likewise | 10: tables of numbers and names |

Nothing is said of a text that means nothing: of random weights, or accepted at given rates.
This module knows records and the sums of requests; it does not know tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from harness.config.models import Weights
from harness.records.request import FinishReason, RequestRecord
from harness.records.schema import CellRecord
from kernels.methods import Guarantee

Floats = NDArray[np.float64]

WINDOW = 200
MIN_TOKENS = 64
NGRAM = 4
LEAST_DISTINCT = 0.5

DEFINITION = (
    f"a loop is an answer of {MIN_TOKENS} tokens or more of whose last {WINDOW} fewer than {LEAST_DISTINCT:.0%} of the "
    f"{NGRAM}-grams are distinct"
)
OF_DRAFTS = ("num_draft_tokens", "num_accepted_tokens", "num_full_drafts", "num_accepted_in_full_drafts")
"""Sums that are also taken over the answers that do not loop."""
WITHOUT = "_without_loops"


def is_loop(token_ids: Sequence[int]) -> bool:
    """Whether an answer loops; never one below MIN_TOKENS."""
    if len(token_ids) < MIN_TOKENS:
        return False
    last = token_ids[-WINDOW:]
    num_grams = len(last) - NGRAM + 1
    grams = zip(*(last[start : start + num_grams] for start in range(NGRAM)), strict=True)
    return len(set(grams)) < LEAST_DISTINCT * num_grams


def loop_values(cell: CellRecord, sums: Mapping[str, Floats]) -> dict[str, Floats]:
    """[R] of each sum by request that tells of loops; nan where nothing is said of them.

    Args:
        cell: with R requests.
        sums: [R] of OF_DRAFTS.
    """
    judged = np.array([_can_be_judged(item) for item in cell.requests], dtype=bool)
    if not (has_text(cell) and judged.any()):
        names = ("num_judged_answers", "num_looping_answers", *(f"{name}{WITHOUT}" for name in OF_DRAFTS))
        return {name: np.full(len(cell.requests), np.nan) for name in names}
    loops = np.array([is_loop(item.output_token_ids) for item in cell.requests], dtype=bool)
    others = {f"{name}{WITHOUT}": np.where(judged & ~loops, sums[name], 0.0) for name in OF_DRAFTS}
    return {
        "num_judged_answers": judged.astype(np.float64),
        "num_looping_answers": loops.astype(np.float64),
        **others,
    }


def num_not_judged(cell: CellRecord) -> tuple[int, int]:
    """Answers that were cut too early to be judged, and answers whose tokens are not known; none where no text is."""
    others = [item for item in cell.requests if not _can_be_judged(item)] if has_text(cell) else []
    num_unknown = sum(not item.output_token_ids for item in others)
    return len(others) - num_unknown, num_unknown


def _can_be_judged(request: RequestRecord) -> bool:
    num_tokens = len(request.output_token_ids)
    return num_tokens >= MIN_TOKENS or (
        num_tokens > 0 and request.finish_reason in (FinishReason.eos, FinishReason.stop)
    )


def has_text(cell: CellRecord) -> bool:
    """Whether answers are those of a trained model, and accepted by a rule that reads them."""
    is_random = cell.config["target"].get("weights") == Weights.random.value
    return not is_random and cell.config.get("guarantee") != Guarantee.synthetic.value
