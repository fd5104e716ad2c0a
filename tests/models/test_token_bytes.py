"""What tokens spell: byte-level vocabularies, SentencePiece's, words; and markers of reasoning among them."""

import pytest

from harness.engine.constraint.registry import DSML_CALLS, END_THINK, build_parser
from harness.models.token_bytes import bytes_of_tokens

pytestmark = pytest.mark.fast

E_ACUTE = b"\xc3\xa9"


@pytest.mark.parametrize(
    ("spelt", "added"),
    [
        ({"Ġ": b" ", "Ġthe": b" the", "Ã©": E_ACUTE, "Ċ": b"\n", "<0x0A>": b"<0x0A>", "<é>": b"<\xc3\xa9>"}, "<é>"),
        ({"▁": b" ", "▁the": b" the", "é": E_ACUTE, "<0x0A>": b"\n", "<0xC3>": b"\xc3", "<pad>": b"<pad>"}, "<pad>"),
        ({"▁": b" ", "Ġ": "Ġ".encode(), "é": E_ACUTE, "Ġozo": "Ġozo".encode()}, ""),
        ({"w1": b"w1", "é": E_ACUTE, "<0x0A>": b"<0x0A>"}, ""),
    ],
    ids=["byte-level", "SentencePiece", "SentencePiece with the letter G with a dot", "words"],
)
def test_what_tokens_spell(spelt, added):
    """Would catch a piece for a byte that is taken for its own name, and a letter that makes pieces byte-level."""
    vocabulary = {token: number for number, token in enumerate(spelt)}
    assert bytes_of_tokens(vocabulary, {added}) == dict(enumerate(spelt.values()))


class Pieces:
    """As much of a SentencePiece tokenizer as a parser asks for."""

    tokens = ("▁", "<", "DSML", "function_calls", ">", END_THINK, *(f"<0x{byte:02X}>" for byte in range(256)))

    def get_vocab(self):
        return {token: number for number, token in enumerate(self.tokens)}

    def get_added_vocab(self):
        return {END_THINK: self.tokens.index(END_THINK)}


def test_a_marker_that_is_spelt_byte_by_byte_ends_reasoning():
    """Would catch DSML's bars, which a vocabulary of pieces may lack, that are not found as bytes."""
    vocabulary = Pieces().get_vocab()
    bar = [vocabulary[f"<0x{byte:02X}>"] for byte in "｜".encode()]
    ids = [vocabulary["<"], *bar, vocabulary["DSML"], *bar, vocabulary["function_calls"], vocabulary[">"]]
    assert DSML_CALLS[0] == "<｜DSML｜function_calls>"
    parser = build_parser("deepseek", Pieces())
    assert parser.end_index_in([vocabulary["▁"], *ids], parser.start()) == len(ids)
