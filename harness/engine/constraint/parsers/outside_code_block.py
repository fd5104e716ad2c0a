"""The marker counts only outside of a code block: in a block it is text that the reasoning quotes.

A block begins and ends at a fence, a run of three or more backticks, however tokens cut it. The state is whether a
block is open, the backticks at the end so far (at most three count), and the state of the marker's own parser.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.engine.constraint.parsers.parser import ReasoningParser, State

FENCE = 3
"""Backticks that make a fence."""


class OutsideCodeBlock(ReasoningParser):
    """Reasoning ends at the first marker that does not stand in a code block."""

    def __init__(self, marker: ReasoningParser, texts_with_backticks: Mapping[int, str]) -> None:
        """
        Args:
            marker: finds the marker where there are no blocks.
            texts_with_backticks: the text of every token of the vocabulary that holds a backtick.
        """
        self.marker = marker
        self._anew = marker.start()
        self._texts = texts_with_backticks

    @property
    def ending(self) -> tuple[int, ...]:
        return self.marker.ending

    def start(self) -> State:
        return False, 0, self._anew

    def step(self, token_id: int, state: State) -> State | None:
        assert isinstance(state, tuple)
        is_open, num_backticks, inner = state
        is_open, num_backticks = self._fences(token_id, is_open, num_backticks)
        if is_open:
            # a marker that a block interrupts must begin anew
            return is_open, num_backticks, self._anew
        inner = self.marker.step(token_id, inner)
        return None if inner is None else (is_open, num_backticks, inner)

    def may_end_in(self, delta: Sequence[int]) -> bool:
        return self.marker.may_end_in(delta)

    def _fences(self, token_id: int, is_open: bool, num_backticks: int) -> tuple[bool, int]:
        """Whether a block is open after the token, and the backticks it ends with."""
        text = self._texts.get(token_id)
        if text is None:
            return is_open, 0
        for letter in text:
            num_backticks = min(num_backticks + 1, FENCE + 1) if letter == "`" else 0
            is_open ^= num_backticks == FENCE
        return is_open, num_backticks
