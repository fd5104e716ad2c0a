"""What two cells answered to the same requests: how many answers differ, and where the first of them begins to.

At temperature 0 methods that keep the target's argmax give one text, but for rounding: a forward of other shape may
decide between nearly equal logits otherwise, in 16 bits now and then, and from there on the texts differ. Answers whose
tokens are not known are not compared.
"""

from __future__ import annotations

from itertools import takewhile
from typing import NamedTuple

from harness.records.request import RequestRecord
from harness.records.schema import CellRecord

ANSWERS = ("num_answers_compared", "num_other_answers", "first_other_token")
"""Columns of the fields below."""


class OtherAnswers(NamedTuple):
    """Requests that two cells have."""

    num_compared: int
    """Requests of both whose output tokens are known in both."""
    num_other: int
    """Those of them whose tokens differ. A later turn is among them where an earlier one made its prompt another."""
    first_token: int | None
    """The smallest place, from 1, at which two answers to one and the same prompt part; None where none do."""

    @property
    def columns(self) -> dict[str, int | None]:
        """Its columns (`harness.analysis.columns`); empty where nothing could be compared."""
        return dict(zip(ANSWERS, self, strict=True)) if self.num_compared else dict.fromkeys(ANSWERS)


def other_answers(first: CellRecord, second: CellRecord) -> OtherAnswers:
    """Compare the output tokens of two cells, request by request."""
    known = {item.key: item for item in first.requests if item.output_token_ids}
    pairs = [(known[item.key], item) for item in second.requests if item.output_token_ids and item.key in known]
    other = [pair for pair in pairs if pair[0].output_token_ids != pair[1].output_token_ids]
    first_turns: dict[tuple[str, int], int] = {}
    for mine, _ in other:
        conversation = mine.prompt_id, mine.sample
        first_turns[conversation] = min(mine.turn, first_turns.get(conversation, mine.turn))
    places = [_parting(*pair) for pair in other if pair[0].turn == first_turns[pair[0].prompt_id, pair[0].sample]]
    return OtherAnswers(len(pairs), len(other), min(places, default=None))


def _parting(first: RequestRecord, second: RequestRecord) -> int:
    """The place, from 1, of the first token in which two answers differ; behind the shorter where it begins both."""
    pairs = zip(first.output_token_ids, second.output_token_ids, strict=False)
    return 1 + sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
