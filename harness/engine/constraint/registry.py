"""Reasoning parsers by name, each built for a tokenizer.

zoo, glm             `</think>`, one token
qwen3, glm5          `</think>` or `<tool_call>`, which Qwen3.5 and GLM-4.7 and 5 may write within their reasoning, as
                     vLLM's parsers of them have it
deepseek             `</think>` or a block of calls in DSML, `<｜DSML｜function_calls>` of DeepSeek-V3.2 and
                     `<｜DSML｜tool_calls>` of V4, which tokens cut
harmony              the channel `final` of gpt-oss
think_outside_code   `</think>`, but not in a code block
none                 the answer begins with the first output token
never                reasoning goes on to the end of the output
PACKAGE.MODULE:NAME  a function of the tokenizer that returns a parser
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.config.imported import ImportPath, named
from harness.engine.constraint.parsers.harmony import FinalChannel
from harness.engine.constraint.parsers.markers import AnyToken, NoReasoning, OneToken
from harness.engine.constraint.parsers.outside_code_block import OutsideCodeBlock
from harness.engine.constraint.parsers.parser import ReasoningParser
from harness.engine.constraint.parsers.text_markers import TextMarkers
from harness.models.token_bytes import token_bytes

END_THINK = "</think>"
TOOL_CALL = "<tool_call>"
DSML_CALLS = ("<｜DSML｜function_calls>", "<｜DSML｜tool_calls>")
CHANNEL, MESSAGE = "<|channel|>", "<|message|>"


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


def _think_or(tokenizer: Any, *others: str) -> ReasoningParser:
    """`</think>`, or the first of other markers: by tokens where each is one, else by what tokens spell."""
    end, vocabulary = token_id(tokenizer, END_THINK), tokenizer.get_vocab()
    if all(text in vocabulary for text in others):
        return AnyToken([end, *(vocabulary[text] for text in others)])
    return TextMarkers([END_THINK, *others], token_bytes(tokenizer))


def _think_or_call(tokenizer: Any) -> ReasoningParser:
    return _think_or(tokenizer, TOOL_CALL)


def _deepseek(tokenizer: Any) -> ReasoningParser:
    return _think_or(tokenizer, *DSML_CALLS)


def _harmony(tokenizer: Any) -> ReasoningParser:
    channel, message = (token_id(tokenizer, text) for text in (CHANNEL, MESSAGE))
    return FinalChannel(channel, message, token_bytes(tokenizer))


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
    "qwen3": _think_or_call,
    "glm": _think,
    "glm5": _think_or_call,
    "deepseek": _deepseek,
    "harmony": _harmony,
    "think_outside_code": _think_outside_code,
    "none": _no_reasoning,
    "never": _never,
}
