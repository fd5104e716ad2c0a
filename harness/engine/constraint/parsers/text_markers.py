"""Markers that are text: found wherever tokens begin and end, by the bytes that the tokens spell.

The state is the longest end of the text so far with which a marker begins. What the token that completes a marker
spells behind it, such as a line break, is not held to the grammar, which begins with the next token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.engine.constraint.parsers.parser import ReasoningParser, State


class TextMarkers(ReasoningParser):
    """Reasoning ends with the token in which the first of some texts is complete."""

    def __init__(self, markers: Sequence[str], bytes_of: Mapping[int, bytes]) -> None:
        """
        Args:
            markers: texts, none of them empty.
            bytes_of: id -> what the token spells, of the whole vocabulary.
        """
        if not markers or not all(markers):
            raise ValueError(f"end-of-reasoning markers: expected texts that are not empty, found {list(markers)}")
        self._markers = tuple(marker.encode() for marker in markers)
        self._bytes_of = bytes_of
        first, last = {marker[0] for marker in self._markers}, {marker[-1] for marker in self._markers}
        self._may_begin = frozenset(number for number, spelt in bytes_of.items() if not first.isdisjoint(spelt))
        self._may_complete = frozenset(number for number, spelt in bytes_of.items() if not last.isdisjoint(spelt))

    def start(self) -> State:
        return b""

    def step(self, token_id: int, state: State) -> State | None:
        assert isinstance(state, bytes)
        if not state and token_id not in self._may_begin:
            return state
        text = state + self._bytes_of.get(token_id, b"")
        if any(marker in text for marker in self._markers):
            return None
        begun = (self._begun(marker, text) for marker in self._markers)
        return max(begun, key=len)

    def may_end_in(self, delta: Sequence[int]) -> bool:
        return not self._may_complete.isdisjoint(delta)

    def _begun(self, marker: bytes, text: bytes) -> bytes:
        """The longest end of a text with which a marker begins."""
        lengths = range(min(len(marker) - 1, len(text)), 0, -1)
        return next((marker[:length] for length in lengths if text.endswith(marker[:length])), b"")
