"""How many prompt tokens a step reads beside running rounds.

A forward of up to FULL_FORWARD tokens takes little longer than reading its weights; beyond that every token costs
arithmetic. Small portions of prompts use what rounds leave free of it. But a slot that waits for the rest of its prompt
emits nothing, so that portions pay only where few slots wait, and for few steps. It does not know requests or tensors.
"""

from __future__ import annotations

from typing import NamedTuple

FULL_FORWARD = 128
"""Tokens of a forward up to which it takes about as long as its weights to read; fused experts take no more. On an H200
steps with rounds of 64 tokens took 4.5 to 6.2 ms, those with a prompt of 128 tokens beside them 3 ms more."""
LEAST_TOKENS = 32
"""Of the smallest portion; with smaller ones slots would wait longer than they save."""
MOST_STEPS = 4
"""That the prompts which wait may take in portions; if there is more of them, it is read at once."""


class PromptLimit(NamedTuple):
    """The limit of one engine."""

    num_tokens: int
    """Prompt tokens of a step with rounds at most; whole rows."""
    is_fixed: bool
    """Whether it holds however much waits; else it is lifted where portions would take too long."""

    def room(self, num_decoding: int, num_waiting: int, num_tokens_left: int, most_tokens: int) -> int:
        """Prompt tokens that the next step may read.

        Args:
            num_decoding: requests that decode in it.
            num_waiting: requests whose prompts have not been read to the end.
            num_tokens_left: what is left of those prompts.
            most_tokens: of a step without rounds.
        """
        takes_long = num_tokens_left > MOST_STEPS * self.num_tokens
        many_wait = 4 * num_waiting >= num_waiting + num_decoding
        is_lifted = num_decoding == 0 or (not self.is_fixed and (takes_long or many_wait))
        return most_tokens if is_lifted else min(self.num_tokens, most_tokens)


def prompt_limit(num_slots: int, row_width: int, most_tokens: int | None = None) -> PromptLimit | None:
    """The limit of an engine that reads prompts in rows.

    Args:
        num_slots: slots; a step that reads prompts has room for a round of each.
        row_width: tokens of a row, and of a slot's round.
        most_tokens: prompt tokens of a step with rounds, at least a row of them; None takes what the rounds leave of
            FULL_FORWARD, LEAST_TOKENS or more.

    Returns:
        None for no limit: the rounds alone fill a forward, so that a prompt token costs the same in any step.
    """
    if most_tokens is not None:
        return PromptLimit(max(1, most_tokens // row_width) * row_width, is_fixed=True)
    num_free = FULL_FORWARD - num_slots * row_width
    if num_free <= 0:
        return None
    return PromptLimit(max(num_free // row_width, -(-LEAST_TOKENS // row_width)) * row_width, is_fixed=False)
