"""Stop strings: texts with which an answer ends, wherever tokens begin and end in it.

The answer ends with the first output token in whose text some stop string is complete. The token stays, and the text
of the answer ends before the stop string. It is the one that is complete first if characters come one by one, whatever
a token spells at once; of those that are complete at once the longest. Texts are compared as bytes, so that a character
that tokens split is one. Special tokens spell nothing, and the prompt is not looked at.

Only tokens that hold the last byte of a stop string can complete one: no other round is read as text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

from harness.models.token_bytes import token_bytes
from harness.records.request import StopFound


class StopStrings:
    """The stop strings of some requests, over the tokens of one vocabulary."""

    def __init__(self, strings: Sequence[str], bytes_of: Mapping[int, bytes]) -> None:
        """
        Args:
            strings: one or more, none of them empty.
            bytes_of: id -> what the token spells; a missing one spells nothing.
        """
        assert strings and all(strings), f"expected stop strings that are not empty, found {list(strings)}"
        self.strings = tuple(strings)
        self._bytes_of = bytes_of
        self._min_tokens = 0
        self._stops = [(string.encode(), string) for string in strings]
        self._beginnings = frozenset(stop[:length] for stop, _ in self._stops for length in range(1, len(stop)))
        self._num_kept = max(map(len, self._beginnings), default=0)
        last = {stop[-1] for stop, _ in self._stops}
        self._may_complete = frozenset(number for number, spelt in bytes_of.items() if not last.isdisjoint(spelt))

    def after(self, min_tokens: int) -> StopStrings:
        """The same, but that none ends an answer which is complete within so many first output tokens."""
        later = copy(self)
        later._min_tokens = min_tokens
        return later

    def may_end_in(self, token_ids: Iterable[int]) -> bool:
        """Whether an answer may end in some tokens; False is certain."""
        return not self._may_complete.isdisjoint(token_ids)

    def behind(self, token_ids: Sequence[int], num_prompt_tokens: int = 0) -> TextEnd:
        """The end of a text, behind which a stop string is looked for.

        Args:
            token_ids: prompt and output so far.
            num_prompt_tokens: of them the prompt's, which are not read.
        """
        parts: list[bytes] = []
        num_missing, place = self._num_kept, len(token_ids)
        while num_missing > 0 and place > num_prompt_tokens:
            place -= 1
            parts.append(self._bytes_of.get(token_ids[place], b""))
            num_missing -= len(parts[-1])
        num_free = max(0, self._min_tokens - (len(token_ids) - num_prompt_tokens))
        return TextEnd(self, self._kept(b"".join(reversed(parts))), num_free)

    def found_in(self, output_ids: Sequence[int]) -> StopFound:
        """What ended an answer by the last of its output tokens."""
        text = self.behind(output_ids[:-1]).text
        found = self._first(text, self._bytes_of[output_ids[-1]])
        assert found is not None, "no stop string is complete in the last token"
        string, start = found
        tail = (text + self._bytes_of[output_ids[-1]])[start:]
        return StopFound(string, len(tail.decode(errors="replace")))

    def next(self, text: bytes, token_id: int) -> tuple[bytes, bool]:
        """The end of a text with one more token, and whether a stop string is complete in this token."""
        spelt = self._bytes_of.get(token_id, b"")
        is_complete = token_id in self._may_complete and self._first(text, spelt) is not None
        return self._kept(text + spelt), is_complete

    def _kept(self, text: bytes) -> bytes:
        """The longest end of a text with which a stop string begins."""
        ends = (text[start:] for start in range(max(0, len(text) - self._num_kept), len(text)))
        return next((end for end in ends if end in self._beginnings), b"")

    def _first(self, before: bytes, spelt: bytes) -> tuple[str, int] | None:
        """The stop string that is complete first in the bytes behind some others, and where it begins in all of them.

        Of several that are complete at once it is the longest.
        """
        text = before + spelt
        found = []
        for stop, string in self._stops:
            # one that ends before the new bytes has not ended the answer
            start = text.find(stop, max(0, len(before) - len(stop) + 1))
            if start >= 0:
                found.append((start + len(stop), start, string))
        if not found:
            return None
        _, start, string = min(found)
        return string, start


@dataclass(frozen=True, slots=True)
class TextEnd:
    """The end of an output so far."""

    stops: StopStrings
    text: bytes
    """With which a stop string begins; empty where none does."""
    num_free: int = 0
    """Tokens behind it in which no stop string ends the answer."""

    def first(self, token_ids: Sequence[int]) -> int | None:
        """Index of the first of some tokens behind it that completes a stop string; None if none does."""
        if not self.stops.may_end_in(token_ids):
            return None
        text = self.text
        for index, token_id in enumerate(token_ids):
            text, is_complete = self.stops.next(text, token_id)
            if is_complete and index >= self.num_free:
                return index
        return None

    def first_depth(self, token_ids: Sequence[int], depths: Sequence[int]) -> int | None:
        """The least depth of a tree of tokens behind it at which a token may complete a stop string; None if none may.

        Every token of a depth is taken to follow every one of the depth before: which of them do is not asked, so that
        the depth may be less than that of the tree's own branches, and is never more.
        """
        if not self.stops.may_end_in(token_ids):
            return None
        texts = {self.text}
        for depth in range(1, max(depths) + 1):
            here = {token_id for token_id, own in zip(token_ids, depths, strict=True) if own == depth}
            reached = [self.stops.next(text, token_id) for text in texts for token_id in here]
            if depth > self.num_free and any(is_complete for _, is_complete in reached):
                return depth
            texts = {text for text, _ in reached}
        return None


def spelt_by(tokenizer: Any) -> dict[int, bytes]:
    """Id -> bytes of the tokens of a tokenizer of transformers in the text of an answer, from which it leaves special
    ones out."""
    special = frozenset(tokenizer.all_special_ids)
    return {number: spelt for number, spelt in token_bytes(tokenizer).items() if number not in special}
