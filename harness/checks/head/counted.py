"""Counts of drafts by prompt as those of a record: metrics, intervals, differences are those of all records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from harness.analysis.estimates import Estimates
from harness.analysis.sums import cell_sums
from harness.records.counts import Arrival, DraftCounts, Knowledge
from harness.records.request import FinishReason, RequestRecord
from harness.records.schema import CellRecord

NUM_RESAMPLES = 10_000
CONFIDENCE = 0.999
"""Of a difference that is named: some twenty are looked at."""
Key = tuple[str, int]
"""Prompt and sample."""


def of_counts(record: CellRecord, counts: Mapping[Key, DraftCounts]) -> Estimates:
    """The metrics of drafts that are counted by prompt.

    Args:
        record: whose settings they have.
        counts: of each prompt and sample; those without a draft are left out.
    """
    requests = tuple(_request(key, item) for key, item in counts.items() if item.num_drafts)
    return of_record(replace(record, requests=requests, knowledge=Knowledge.requests, blocks=()))


def of_record(record: CellRecord, confidence: float = CONFIDENCE) -> Estimates:
    """The metrics of a record, with the intervals of differences that are named."""
    return Estimates(cell_sums(record), NUM_RESAMPLES, confidence)


def _request(key: Key, counts: DraftCounts) -> RequestRecord:
    prompt_id, sample = key
    return RequestRecord(
        prompt_id=prompt_id,
        category="",
        turn=0,
        sample=sample,
        seed=0,
        num_prompt_tokens=0,
        output_token_ids=(),
        finish_reason=FinishReason.length,
        submitted_s=0.0,
        arrivals=(Arrival(0.0, counts.num_drafts),),
        counts=counts,
    )
