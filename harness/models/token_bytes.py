"""The bytes that each token of a vocabulary spells. Knows vocabularies as tokenizers of transformers give them."""

from __future__ import annotations

from functools import cache
from typing import Any

_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
"""Bytes that stand for themselves in a byte-level vocabulary."""


@cache
def byte_of_letter() -> dict[str, int]:
    """Letter of a byte-level vocabulary -> byte: the printable ones are themselves, the others the characters behind
    255, in order (GPT-2's alphabet)."""
    others = [byte for byte in range(256) if byte not in _PRINTABLE]
    return {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + place): byte for place, byte in enumerate(others)}


def token_bytes(tokenizer: Any) -> dict[int, bytes]:
    """Id -> bytes of every token, special and added ones as they are written.

    Of a vocabulary that is not byte-level, the text with blanks in the place of their sign.
    """
    letters, added = byte_of_letter(), set(tokenizer.get_added_vocab())
    vocabulary = tokenizer.get_vocab()
    is_byte_level = "\u0120" in vocabulary or not any(token.startswith("\u2581") for token in vocabulary)
    return {
        number: (
            bytes(letters[letter] for letter in token)
            if is_byte_level and token not in added and all(letter in letters for letter in token)
            else token.replace("\u2581", " ").encode()
        )
        for token, number in vocabulary.items()
    }
