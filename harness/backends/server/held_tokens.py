"""Token ids that a server held back: found from the text, where only these spell it.

llama.cpp sends neither text nor id of a token that ends within a character, and then the text of all of them with the
id of the last. How many were held, and that each ended within a character, often leaves one way to spell the bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.models.token_bytes import byte_of_letter

MOST_HELD = 12
"""Tokens of a chunk that are looked for."""


def byte_vocabulary(tokenizer: Any) -> dict[bytes, int]:
    """The tokens of a byte-level vocabulary by their bytes; those that are no bytes, such as special ones, left out."""
    byte_of = byte_of_letter()
    special = set(tokenizer.all_special_ids)
    return {
        bytes(byte_of[letter] for letter in token): token_id
        for token, token_id in tokenizer.get_vocab().items()
        if token_id not in special and all(letter in byte_of for letter in token)
    }


def held_ids(text: str, last: int, num_held: int, vocabulary: Mapping[bytes, int]) -> tuple[int, ...] | None:
    """The tokens before the last of a chunk; None where several spell it, or none.

    Args:
        text: of all tokens of the chunk; the text before it ends with a whole character.
        last: the token that was not held.
        num_held: tokens before it.
        vocabulary: tokens by their bytes.
    """
    own = next((spelt for spelt, token in vocabulary.items() if token == last), None)
    spelt = text.encode()
    if own is None or num_held > MOST_HELD or not spelt.endswith(own):
        return None
    ways: list[tuple[int, ...]] = []
    for way in _ways(spelt[: len(spelt) - len(own)], 0, num_held, vocabulary):
        ways.append(way)
        if len(ways) > 1:
            return None
    return ways[0] if ways else None


def _ways(spelt: bytes, start: int, num_left: int, vocabulary: Mapping[bytes, int]) -> Iterator[tuple[int, ...]]:
    if not num_left:
        if start == len(spelt):
            yield ()
        return
    for end in range(start + 1, len(spelt) - num_left + 2):
        token = vocabulary.get(spelt[start:end])
        if token is not None and _is_within_character(spelt[:end]):
            for rest in _ways(spelt, end, num_left - 1, vocabulary):
                yield (token, *rest)


def _is_within_character(spelt: bytes) -> bool:
    """Whether a text of UTF-8 ends before its last character does."""
    for back, byte in enumerate(reversed(spelt[-4:]), start=1):
        if byte >= 0xC0:
            return back < 2 + (byte >= 0xE0) + (byte >= 0xF0)
        if byte < 0x80:
            return False
    return False


def ids_of_chunks(
    told: Sequence[tuple[tuple[int, ...], int, str]], vocabulary: Mapping[bytes, int]
) -> list[tuple[int, ...]]:
    """The token ids of every chunk of an answer, the held ones among them where they can be told.

    Args:
        told: ids, output tokens of the request up to there, and text of each chunk.
        vocabulary: tokens by their bytes.
    """
    found, before = [], 0
    for ids, num, text in told:
        num_held, before = num - before - len(ids), num
        held = held_ids(text, ids[-1], num_held, vocabulary) if num_held and len(ids) == 1 else ()
        found.append((*(held or ()), *ids))
    return found
