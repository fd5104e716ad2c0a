"""gpt-oss's channels (openai/harmony): the answer is the message of the channel `final`.

    <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final <|constrain|>json<|message|>{...}

The header between `<|channel|>` and `<|message|>` is text: its first word is the channel, whatever follows it, and
tokens may cut it anywhere. The state is the header so far, as much of it as tells the channel; None outside of one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from harness.engine.constraint.parsers.parser import ReasoningParser, State

FINAL = re.compile(rb"\s*final\b")
LONGEST = 32
"""Bytes of a header that are looked at."""


class FinalChannel(ReasoningParser):
    """Reasoning ends with the `<|message|>` that opens the message of the channel `final`."""

    def __init__(self, channel_id: int, message_id: int, bytes_of: Mapping[int, bytes]) -> None:
        """
        Args:
            channel_id: of `<|channel|>`.
            message_id: of `<|message|>`.
            bytes_of: id -> what the token spells.
        """
        self.channel_id, self.message_id = channel_id, message_id
        self._bytes_of = bytes_of

    @property
    def ending(self) -> tuple[int, ...]:
        return (self.message_id,)

    def start(self) -> State:
        return (None,)

    def step(self, token_id: int, state: State) -> State | None:
        assert isinstance(state, tuple)
        (header,) = state
        if token_id == self.channel_id:
            return (b"",)
        if header is None or token_id == self.message_id:
            return None if header is not None and FINAL.match(header) else (None,)
        return ((header + self._bytes_of.get(token_id, b""))[:LONGEST],)

    def may_end_in(self, delta: Sequence[int]) -> bool:
        return self.message_id in delta
