"""Ids of tokens that llama.cpp held back until their character was whole."""

import json

import pytest

from harness.backends.server.adapters.llama_cpp_run import CompletionReply
from harness.backends.server.held_tokens import byte_vocabulary, ids_of_chunks
from harness.models.gguf import gguf_tokenizer
from tests.support.gguf_files import SPECIAL, TOKENS, write_gguf

pytestmark = pytest.mark.fast

FACE = "\U0001f600"
"""Four bytes."""
HALVES = {b"\xf0\x9f": 1000, b"\x98\x80": 1001, b"\x9f\x98": 1002, b" \xf0": 1003}


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    path = write_gguf(tmp_path_factory.mktemp("gguf") / "a.gguf")
    return byte_vocabulary(gguf_tokenizer(path))


def test_a_vocabulary_is_bytes(vocabulary):
    """Would catch blanks and special tokens that are taken for their spelling."""
    assert len(vocabulary) == len(TOKENS) - len(SPECIAL)
    assert {vocabulary[bytes([byte])] for byte in range(256)} <= set(vocabulary.values())
    assert TOKENS[vocabulary[b" w"]] == "Ġw"


def sent(vocabulary, *tokens):
    """What the server sends of some tokens, given as their bytes: those within a character with the next."""
    told, held, num = [], b"", 0
    for spelt in tokens:
        num, held = num + 1, held + spelt
        try:
            text = held.decode()
        except UnicodeDecodeError:
            continue
        told.append(((vocabulary[spelt],), num, text))
        held = b""
    return told


@pytest.mark.parametrize(
    ("tokens", "is_found"),
    [
        ((b"h", b"i"), True),
        ((b"h", *(bytes([byte]) for byte in FACE.encode()), b"i"), True),
        ((b" \xf0", b"\x9f", b"\x98\x80"), True),
        # the first two bytes, then one; or one, then the two behind it
        ((b"\xf0\x9f", b"\x98", b"\x80"), False),
    ],
    ids=["none", "bytes", "with a blank", "two ways"],
)
def test_held_ids_are_the_only_ones_or_unknown(vocabulary, tokens, is_found):
    """Would catch an answer of other tokens than the server's."""
    known = vocabulary | HALVES
    found = sum(ids_of_chunks(sent(known, *tokens), known), ())
    assert (found == tuple(known[each] for each in tokens)) == is_found
    assert is_found or len(found) < len(tokens)


def test_an_answer_that_ends_within_a_character_has_no_ids(vocabulary):
    """Would catch a last token that is left out, so that counts do not add up."""
    reply = CompletionReply()
    common = {"tokens_evaluated": 3, "timings": {"cache_n": 0, "predicted_n": 1}}
    first = {"content": "h", "tokens": [vocabulary[b"h"]], "stop": False, "tokens_predicted": 1}
    last = {"content": "", "tokens": [], "stop": True, "stop_type": "limit", "tokens_predicted": 3}
    for place, event in enumerate((first, last)):
        reply.take_line(b"data: " + json.dumps(event | common).encode(), float(place))
    reply.find_held_ids(lambda: vocabulary)
    arrivals, note = reply.arrivals()
    assert reply.token_ids == () and note is None and arrivals == ((0.0, 1), (1.0, 2))
    assert reply.first_ids(1) == (vocabulary[b"h"],) and len(reply.first_ids(2)) == 1
