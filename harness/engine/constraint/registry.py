"""Reasoning parsers by name, each built for a tokenizer.

zoo, qwen3, glm      `</think>`, one token
harmony              `<|channel|>final<|message|>`, several tokens
think_outside_code   `</think>`, but not in a code block
none                 the answer begins with the first output token
never                reasoning goes on to the end of the output
PACKAGE.MODULE:NAME  a function of the tokenizer that returns a parser
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.config.imported import ImportPath, named
from harness.engine.constraint.parsers.markers import NoReasoning, OneToken, SeveralTokens
from harness.engine.constraint.parsers.outside_code_block import OutsideCodeBlock
from harness.engine.constraint.parsers.parser import ReasoningParser

END_THINK = "</think>"
FINAL_CHANNEL = ("<|channel|>", "final", "<|message|>")


def build_parser(name: str, tokenizer: Any) -> ReasoningParser:
    """The parser of a name for a tokenizer of transformers.

    Raises:
        ValueError: no such parser, or the tokenizer has no such marker.
    """
    return _maker(name)(tokenizer)


def check_parser(name: str) -> None:
    """Raises ValueError when there is no such parser, whatever the tokenizer."""
    _maker(name)


def _maker(name: str) -> Callable[[Any], ReasoningParser]:
    found = named("constraint.parser", PARSERS, name)
    return found.load("constraint.parser") if isinstance(found, ImportPath) else found


def token_id(tokenizer: Any, text: str) -> int:
    """The id of a token; raises ValueError when the vocabulary does not have it."""
    found = tokenizer.get_vocab().get(text)
    if found is None:
        raise ValueError(
            f"constraint.parser: expected a tokenizer with the token {text}, found none; choose the parser that fits "
            "the model, or name one of your own as PACKAGE.MODULE:NAME"
        )
    return int(found)


def _think(tokenizer: Any) -> ReasoningParser:
    return OneToken(token_id(tokenizer, END_THINK))


def _harmony(tokenizer: Any) -> ReasoningParser:
    return SeveralTokens([token_id(tokenizer, text) for text in FINAL_CHANNEL])


def _think_outside_code(tokenizer: Any) -> ReasoningParser:
    # byte-level vocabularies write a backtick as itself
    texts = {number: text for text, number in tokenizer.get_vocab().items() if "`" in text}
    return OutsideCodeBlock(_think(tokenizer), texts)


def _no_reasoning(tokenizer: Any) -> ReasoningParser:
    return NoReasoning()


def _never(tokenizer: Any) -> ReasoningParser:
    # no token has this id
    return OneToken(-1)


PARSERS: dict[str, Callable[[Any], ReasoningParser]] = {
    "zoo": _think,
    "qwen3": _think,
    "glm": _think,
    "harmony": _harmony,
    "think_outside_code": _think_outside_code,
    "none": _no_reasoning,
    "never": _never,
}
