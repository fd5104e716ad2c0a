"""How many drafts began with more tokens than the drafter's file names positions (max_position_embeddings)."""

from __future__ import annotations

import math

from harness.records.counts import Knowledge
from harness.records.schema import CellRecord


def drafts_beyond(record: CellRecord) -> float:
    """Share of the rounds with a proposed token whose prompt and output so far are longer; nan where the file names no
    number, where rounds are not known, and without such rounds."""
    if not record.drafter_positions or record.knowledge is not Knowledge.rounds:
        return math.nan
    num_drafts = num_beyond = 0
    for request in record.requests:
        length = request.num_prompt_tokens
        for item in request.rounds:
            if item.num_proposed_tokens:
                num_drafts += 1
                num_beyond += length > record.drafter_positions
            length += item.num_output_tokens
    return num_beyond / num_drafts if num_drafts else math.nan
