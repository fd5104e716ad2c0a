"""What two cells answered to the same requests: how many answers differ, and where the first of them begins to.

At temperature 0 methods that keep the target's argmax give one text, but for rounding: a forward of other shape may
decide between nearly equal logits otherwise, in 16 bits now and then, and from there on the texts differ. A wrong
kernel, position or cache makes them differ too, and sooner. Seen on a CPU, plain decoding beside a draft model with
K = 4, answers that part, of the tokens up to there:

| model | float32 | float16 | bfloat16 |
|---|---|---|---|
| built-in model, 24 answers of 96 tokens | 0 of 2,304 | 0 of 2,304 | 8 of 2,013 |
| SmolLM2-135M-Instruct, 12 answers of 64 tokens | 0 of 768 | | 8 of 481 |

Answers whose tokens are not known are not compared.
"""

from __future__ import annotations

from itertools import takewhile
from typing import NamedTuple

from harness.analysis.settings_columns import rounded
from harness.config.models import Weights
from harness.records.request import RequestRecord
from harness.records.schema import CellRecord

ROUNDING = {"float32": 1e-4, "float16": 0.01, "bfloat16": 0.05}
"""dtype -> share of tokens at which rounding parts two answers, at most: three times what was seen, or more."""
IMPROBABLE = 1e-3
"""Chance below which as many partings are not laid to it."""
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
    num_parted: int = 0
    """Answers to one and the same prompt that part."""
    num_tokens: int = 0
    """Tokens at which answers to one and the same prompt could have parted, up to where they did."""

    @property
    def columns(self) -> dict[str, int | None]:
        """Its columns (`harness.analysis.columns`); empty where nothing could be compared."""
        return dict(zip(ANSWERS, self, strict=False)) if self.num_compared else dict.fromkeys(ANSWERS)


class Parting(NamedTuple):
    """Where two answers to one and the same prompt part."""

    key: tuple[str, int, int]
    """Of the request: prompt, turn, copy."""
    place: int
    """Of the first token in which they differ, from 1."""
    tokens: tuple[int | None, int | None]
    """What the first and the second answer have there; None where an answer has ended."""


def partings(first: CellRecord, second: CellRecord) -> list[Parting]:
    """Where the answers of two cells part, in the order of the second's requests; not behind an earlier parting of the
    same conversation."""
    return [item for item in _compared(first, second) if isinstance(item, Parting)]


def other_answers(first: CellRecord, second: CellRecord) -> OtherAnswers:
    """Compare the output tokens of two cells, request by request."""
    pairs = _pairs(first, second)
    num_other = sum(mine.output_token_ids != own.output_token_ids for mine, own in pairs)
    found = _compared(first, second)
    places = [item.place for item in found if isinstance(item, Parting)]
    num_alike = sum(item for item in found if isinstance(item, int))
    return OtherAnswers(len(pairs), num_other, min(places, default=None), len(places), num_alike + sum(places))


def _pairs(first: CellRecord, second: CellRecord) -> list[tuple[RequestRecord, RequestRecord]]:
    """The requests whose output tokens both cells have."""
    known = {item.key: item for item in first.requests if item.output_token_ids}
    return [(known[item.key], item) for item in second.requests if item.output_token_ids and item.key in known]


def _compared(first: CellRecord, second: CellRecord) -> list[Parting | int]:
    """Of each answer to one and the same prompt where it parts, or its tokens where it does not."""
    pairs = _pairs(first, second)
    first_turns: dict[tuple[str, int], int] = {}
    for mine, own in pairs:
        if mine.output_token_ids != own.output_token_ids:
            conversation = mine.prompt_id, mine.sample
            first_turns[conversation] = min(mine.turn, first_turns.get(conversation, mine.turn))
    found: list[Parting | int] = []
    for mine, own in pairs:
        if mine.turn > first_turns.get((mine.prompt_id, mine.sample), mine.turn):
            # another prompt
            continue
        same = mine.output_token_ids == own.output_token_ids
        found.append(len(mine.output_token_ids) if same else _parting(mine, own))
    return found


def exceeds_rounding(cell: CellRecord, found: OtherAnswers) -> bool | None:
    """Whether more answers part than rounding explains; None where nothing is known of it.

    Nothing is known of weights or caches of fewer bits, of random weights, whose logits are nearly equal everywhere,
    and of a server that does not say in what it computes.
    """
    from scipy.special import pdtrc

    target = cell.config["target"]
    share = ROUNDING.get(cell.config.get("dtype", ""))
    if share is None or rounded(cell) or target.get("weights") == Weights.random.value:
        return None
    # at that share the number of partings is Poisson's, and as many have this chance
    return found.num_parted > 0 and bool(pdtrc(found.num_parted - 1, share * found.num_tokens) < IMPROBABLE)


def _parting(first: RequestRecord, second: RequestRecord) -> Parting:
    """Of two answers that differ; behind the shorter where it begins both."""
    pairs = zip(first.output_token_ids, second.output_token_ids, strict=False)
    place = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    mine, own = (
        item.output_token_ids[place] if place < len(item.output_token_ids) else None for item in (first, second)
    )
    return Parting(first.key, place + 1, (mine, own))
