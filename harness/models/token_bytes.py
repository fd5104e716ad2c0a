"""The bytes that each token of a vocabulary spells. Knows vocabularies as tokenizers of transformers give them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
"""Bytes that stand for themselves in a byte-level vocabulary."""
_SPACE_OF_BYTES = "\u0120"
_SPACE_OF_PIECES = "\u2581"
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@cache
def byte_of_letter() -> dict[str, int]:
    """Letter of a byte-level vocabulary -> byte: the printable ones are themselves, the others the characters behind
    255, in order (GPT-2's alphabet)."""
    others = [byte for byte in range(256) if byte not in _PRINTABLE]
    return {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + place): byte for place, byte in enumerate(others)}


def token_bytes(tokenizer: Any) -> dict[int, bytes]:
    """Id -> bytes of every token of a tokenizer, special and added ones as they are written."""
    return bytes_of_tokens(tokenizer.get_vocab(), tokenizer.get_added_vocab())


def bytes_of_tokens(vocabulary: Mapping[str, int], added: Collection[str] = ()) -> dict[int, bytes]:
    """Id -> bytes that each token stands for.

    A vocabulary in which a token begins with SentencePiece's mark of a space is one of pieces, some of them for single
    bytes (<0x0A>), even if it has the letter that is a space to byte-level ones. Those are read by their alphabet, any
    other vocabulary as text.

    Args:
        vocabulary: ids by token, as tokenizers have them.
        added: tokens that stand for themselves.
    """
    of_pieces = any(token.startswith(_SPACE_OF_PIECES) for token in vocabulary)
    of_bytes = not of_pieces and _SPACE_OF_BYTES in vocabulary
    letters = byte_of_letter()

    def spelt(token: str) -> bytes:
        if token in added or not (of_pieces or of_bytes):
            return token.encode()
        if of_bytes:
            # one that was added has letters of its own
            return bytes(map(letters.__getitem__, token)) if letters.keys() >= {*token} else token.encode()
        piece = _BYTE_PIECE.fullmatch(token)
        return bytes([int(piece[1], 16)]) if piece else token.replace(_SPACE_OF_PIECES, " ").encode()

    return {number: spelt(token) for token, number in vocabulary.items()}


def is_byte_piece(token: str) -> bool:
    """Whether a token is SentencePiece's for a single byte, which text needs where no other token has its letter."""
    return _BYTE_PIECE.fullmatch(token) is not None
