"""From the turns of a conversation to the token ids that a model continues, and back to text. Knows no model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

THINKING_SWITCHES = ("enable_thinking", "thinking")
"""What chat templates call it: the former Qwen3's and GLM's, the latter DeepSeek's and Granite's."""
PLAIN_TEXT_NOTE = "the tokenizer has no chat template: the conversation was joined with blank lines as plain text"
NO_SWITCH = f"workload.thinking: expected a chat template that heeds {' or '.join(THINKING_SWITCHES)}"


class EncodedChat(NamedTuple):
    """A conversation as the model reads it."""

    token_ids: list[int]
    note: str | None
    """What was done instead of the chat template, for `CellRecord.fallbacks`; None when the template was applied."""


def chat_messages(turns: Sequence[str], answers: Sequence[str]) -> list[dict[str, str]]:
    """The messages up to the next turn to answer: the user's turns, with the model's own answers between them.

    Args:
        turns: what the user says in the whole conversation.
        answers: the answers so far, without special tokens; one fewer than the user's turns so far.

    Raises:
        ValueError: every turn has been answered.
    """
    if len(answers) >= len(turns):
        raise ValueError(f"expected fewer answers than turns, found {len(answers)} answers to {len(turns)} turns")
    messages = []
    for turn, answer in zip(turns, answers, strict=False):
        messages += [{"role": "user", "content": turn}, {"role": "assistant", "content": answer}]
    return [*messages, {"role": "user", "content": turns[len(answers)]}]


def thinking_arguments(thinking: bool) -> dict[str, bool]:
    """What a chat template is given that has a switch, under whichever name."""
    return dict.fromkeys(THINKING_SWITCHES, thinking)


def encode_chat(tokenizer: Any, messages: list[dict[str, str]], thinking: bool | None = None) -> EncodedChat:
    """Render messages with the tokenizer's chat template, open the answer, and tokenize.

    The template is rendered to text first and then encoded without further special tokens, because what
    `apply_chat_template` returns when it tokenizes differs between versions of transformers. A tokenizer without a
    template gets the contents joined with blank lines and the special tokens it puts around any text; a note says so.

    Args:
        tokenizer: a tokenizer of transformers.
        messages: dicts with role and content, the last one the user's.
        thinking: whether the template asks for reasoning; None is its default.

    Raises:
        ValueError: the template refuses the messages, or heeds no switch for reasoning.
    """
    from jinja2 import TemplateError

    given = {} if thinking is None else thinking_arguments(thinking)
    if tokenizer.chat_template is None:
        if given:
            raise ValueError(f"{NO_SWITCH}, found a tokenizer without a template; leave it out")
        text = "\n\n".join(message["content"] for message in messages)
        return EncodedChat(_token_ids(tokenizer, text, add_special_tokens=True), PLAIN_TEXT_NOTE)
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **given)
        other = {name: not value for name, value in given.items()}
        if other and text == tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, **other
        ):
            raise ValueError(f"{NO_SWITCH}, found one that gives the same text either way; leave it out")
    except TemplateError as error:
        roles = ", ".join(message["role"] for message in messages)
        raise ValueError(
            f"expected a chat template that takes messages of {roles}, found one that says: {error}"
        ) from (error)
    return EncodedChat(_token_ids(tokenizer, text, add_special_tokens=False), None)


def decode_answer(tokenizer: Any, token_ids: Sequence[int]) -> str:
    """The text of an answer as it is shown and as the next turn carries it: no special tokens, blanks as generated.

    Args:
        tokenizer: a tokenizer of transformers.
        token_ids: output tokens, or a prefix of them.
    """
    text = tokenizer.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return str(text)


def _token_ids(tokenizer: Any, text: str, add_special_tokens: bool) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=add_special_tokens))
