"""The steps of an answer from counts that a server sends along with its tokens.

A server that counts draft tokens and accepted ones with every token shows where a step begins: there they grow. It may
hold tokens back until a character is whole, so that a chunk holds the tokens of several steps; which these were often
follows from the counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from harness.backends.server.reply import MalformedAnswer
from harness.backends.server.rounds import Steps

Counted = tuple[int, int, int]
"""Output tokens, draft tokens and accepted draft tokens of a request up to a chunk."""
MOST_HELD = 12
"""Tokens of a chunk whose steps are looked for."""


def steps_between(counted: Sequence[Counted], depth: int | None, max_new_tokens: int) -> Steps | None:
    """All steps behind the prefill; None where counts fit several.

    Args:
        counted: of every chunk.
        depth: draft tokens of every step that has room for them; None where steps may have fewer.
        max_new_tokens: limit of the request: a step drafts one token less than are left.

    Raises:
        MalformedAnswer: the counts contradict each other.
    """
    drafted: list[int] = []
    accepted: list[int] = []
    # tokens of the step under way that are still to come; the prefill gives one
    left_of_step = 1
    for before, after in pairwise([(0, 0, 0), *counted]):
        tokens, new_drafted, new_accepted = (later - earlier for earlier, later in zip(before, after, strict=True))
        if min(tokens, new_drafted, new_accepted) < 0:
            raise MalformedAnswer("the counts of an answer go backwards")
        of_step = min(left_of_step, tokens)
        tokens, left_of_step = tokens - of_step, left_of_step - of_step
        if not tokens:
            if new_drafted:
                raise MalformedAnswer("an answer counts drafts before the tokens of the step before have come")
            continue
        if not new_drafted:
            found: tuple[tuple[int, int], ...] | None = ((0, 0),) * tokens
        elif tokens == 1:
            found = ((new_drafted, new_accepted),)
        else:
            num_left = max_new_tokens - (after[0] - tokens)
            found = _only_way(tokens, new_drafted, new_accepted, depth, num_left)
        if found is None:
            return None
        drafted += [item[0] for item in found]
        accepted += [item[1] for item in found]
        left_of_step = sum(item[1] + 1 for item in found) - tokens
    return Steps(tuple(drafted), tuple(accepted), is_complete=True)


def _only_way(
    tokens: int, drafted: int, accepted: int, depth: int | None, num_left: int
) -> tuple[tuple[int, int], ...] | None:
    """(drafted, accepted) of the steps that gave some tokens together; None unless all that fit differ in order only.

    They came together, so that their order tells nothing but how many tokens the last one has left.
    """
    if depth is None or tokens > MOST_HELD:
        return None
    ways = {(tuple(sorted(way)), sum(item[1] + 1 for item in way) - tokens): way
            for way in _ways(tokens, drafted, accepted, depth, num_left)}  # fmt: skip
    return next(iter(ways.values())) if len(ways) == 1 else None


def _ways(tokens: int, drafted: int, accepted: int, depth: int, num_left: int) -> Iterator[tuple[tuple[int, int], ...]]:
    if tokens <= 0:
        if not (drafted or accepted):
            yield ()
        return
    of_step = min(depth, num_left - 1)
    if of_step > drafted:
        return
    for number in range(min(accepted, of_step) + 1):
        given = number + 1
        for rest in _ways(tokens - given, drafted - of_step, accepted - number, depth, num_left - given):
            yield ((of_step, number), *rest)
