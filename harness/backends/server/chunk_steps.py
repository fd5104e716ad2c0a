"""Steps read from the chunks of answers, where a server tells of its drafts by counters alone.

An engine that sends one chunk a step shows each step's output tokens. Whether it did is not believed but compared: the
chunks behind the first of each answer must be as many as the drafts that the counters tell, and their tokens fit the
counts of each position.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest

from harness.backends.server.load_result import Answered
from harness.backends.server.rounds import Steps
from harness.records.counts import DraftCounts

ChunkSteps = Mapping[tuple[str, int, int], Steps]
"""Of each request, by its key."""


def steps_of_chunks(answered: Sequence[Answered], counts: DraftCounts, depth: int) -> ChunkSteps | None:
    """The steps of every answer; None where the chunks are not the steps that the server counted.

    Where an answer ends in a stop token, it cannot be seen whether its last step accepted that token or drew it: then
    nothing is told either; nor where the server sends text without token ids.

    Args:
        answered: all answers of a block, none of which has failed.
        counts: the server's own of that block; drafts beyond the end of a request included.
        depth: K, of every draft.
    """
    sizes = {item.question.key: [event.num_output_tokens for event in item.arrivals] for item in answered}
    if any(item.reply.finish_reason != "length" for item in answered):
        return None
    # without token ids the tokens of a chunk may be a share of the whole answer's
    if not all(item.reply.token_ids for item in answered):
        return None
    if any(chunks[0] != 1 or max(chunks) > depth + 1 for chunks in sizes.values()):
        return None
    num_drafts = sum(len(chunks) - 1 for chunks in sizes.values())
    if (num_drafts, num_drafts * depth) != (counts.num_drafts, counts.num_draft_tokens):
        return None
    seen = [sum(size > place for chunks in sizes.values() for size in chunks[1:]) for place in range(1, depth + 1)]
    told = counts.num_accepted_tokens_per_pos or ()
    # the last step of each answer may have accepted beyond its end
    if any(not 0 <= more - less <= len(sizes) for less, more in zip_longest(seen, told, fillvalue=0)):
        return None
    return {
        key: Steps((depth,) * (len(chunks) - 1), tuple(size - 1 for size in chunks[1:]))
        for key, chunks in sizes.items()
    }
