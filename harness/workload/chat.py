"""From a conversation to the token ids that a model continues, and back to text. Knows no model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from harness.records.request import StopFound
from harness.workload.prompt import Prompt

THINKING_SWITCHES = ("enable_thinking", "thinking")
"""What chat templates call it: the former Qwen3's and GLM's, the latter DeepSeek's and Granite's."""
PLAIN_TEXT_NOTE = "the tokenizer has no chat template: the conversation was joined with blank lines as plain text"
SYSTEM_JOINED_NOTE = (
    "the chat template has no role for a system message: it was put in front of the first turn, with a blank line "
    "between"
)
NO_TOOLS = "expected a chat template that takes tools"
NO_SWITCH = f"workload.thinking: expected a chat template that heeds {' or '.join(THINKING_SWITCHES)}"


class EncodedChat(NamedTuple):
    """A conversation as the model reads it."""

    token_ids: list[int]
    note: str | None
    """What was done instead of the chat template, for `CellRecord.fallbacks`; None when the template was applied."""


def chat_messages(prompt: Prompt, answers: Sequence[str]) -> list[dict[str, Any]]:
    """The messages up to the next turn to answer, with the model's own answers between turns, or those given.

    Args:
        prompt: of the conversation.
        answers: the answers so far, without special tokens; one fewer than the turns so far.

    Raises:
        ValueError: every turn has been answered.
    """
    turns = prompt.turns
    if len(answers) >= len(turns):
        raise ValueError(f"expected fewer answers than turns, found {len(answers)} answers to {len(turns)} turns")
    if prompt.histories:
        return list(json.loads(prompt.histories[len(answers)]))
    messages = [] if prompt.opening is None else list(json.loads(prompt.opening))
    for turn, answer in zip(turns, answers, strict=False):
        messages += [{"role": "user", "content": turn}, {"role": "assistant", "content": answer}]
    return [*messages, {"role": "user", "content": turns[len(answers)]}]


def thinking_arguments(thinking: bool) -> dict[str, bool]:
    """What a chat template is given that has a switch, under whichever name."""
    return dict.fromkeys(THINKING_SWITCHES, thinking)


def encode_prompt(tokenizer: Any, prompt: Prompt, answers: Sequence[str], thinking: bool | None = None) -> EncodedChat:
    """The next turn of a prompt's conversation; arguments and errors are those of chat_messages and encode_chat."""
    return encode_chat(tokenizer, chat_messages(prompt, answers), thinking, tools_of(prompt))


def tools_of(prompt: Prompt) -> list[dict[str, Any]] | None:
    """What the chat template is told of tools."""
    return None if prompt.tools is None else list(json.loads(prompt.tools))


def encode_chat(
    tokenizer: Any,
    messages: list[dict[str, Any]],
    thinking: bool | None = None,
    tools: list[dict[str, Any]] | None = None,
) -> EncodedChat:
    """Render messages with the tokenizer's chat template, open the answer, and tokenize.

    The template is rendered to text first and then encoded without further special tokens, because what
    `apply_chat_template` returns when it tokenizes differs between versions of transformers. A tokenizer without a
    template gets the contents joined with blank lines and the special tokens it puts around any text; a note says so.

    Args:
        tokenizer: a tokenizer of transformers.
        messages: dicts with role and content, the last one the user's or a tool's.
        thinking: whether the template asks for reasoning; None is its default.
        tools: their JSON schemas; None where there are none.

    Raises:
        ValueError: the template refuses the messages, or heeds no switch for reasoning, or no tools.
    """
    given = {} if thinking is None else thinking_arguments(thinking)
    if tokenizer.chat_template is None:
        if given:
            raise ValueError(f"{NO_SWITCH}, found a tokenizer without a template; leave it out")
        if tools is not None:
            raise ValueError(f"{NO_TOOLS}, found a tokenizer without a template; leave such prompts out")
        text = "\n\n".join(message["content"] for message in messages)
        return EncodedChat(_token_ids(tokenizer, text, add_special_tokens=True), PLAIN_TEXT_NOTE)
    text, note = _rendered(tokenizer, messages, tools, given)
    if given:
        other, _ = _rendered(tokenizer, messages, tools, {name: not value for name, value in given.items()})
        if text == other:
            raise ValueError(f"{NO_SWITCH}, found one that gives the same text either way; leave it out")
    if tools is not None and text == _rendered(tokenizer, messages, None, given)[0]:
        raise ValueError(f"{NO_TOOLS}, found one that gives the same text without; leave such prompts out")
    return EncodedChat(_token_ids(tokenizer, text, add_special_tokens=False), note)


def _rendered(
    tokenizer: Any, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, given: dict[str, bool]
) -> tuple[str, str | None]:
    """The text of some messages, and what was done with a system message that the template does not take."""
    from jinja2 import TemplateError

    def render(shown: list[dict[str, Any]]) -> str:
        return str(
            tokenizer.apply_chat_template(shown, tools=tools, tokenize=False, add_generation_prompt=True, **given)
        )

    is_led = messages[0]["role"] == "system" and len(messages) > 1 and messages[1]["role"] == "user"
    try:
        try:
            text = render(messages)
        except TemplateError:
            if not is_led:
                raise
        else:
            if not is_led or messages[0]["content"].strip() in text:
                return text, None
        return render(_joined(messages)), SYSTEM_JOINED_NOTE
    except TemplateError as error:
        roles = ", ".join(message["role"] for message in messages)
        raise ValueError(
            f"expected a chat template that takes messages of {roles}, found one that says: {error}"
        ) from error


def _joined(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with the system's in front of the user's first."""
    system, first, *others = messages
    return [{**first, "content": f"{system['content']}\n\n{first['content']}"}, *others]


def decode_answer(tokenizer: Any, token_ids: Sequence[int], stop: StopFound | None = None) -> str:
    """The text of an answer as it is shown and as the next turn carries it: no special tokens, blanks as generated.

    Args:
        tokenizer: a tokenizer of transformers.
        token_ids: output tokens, or a prefix or end of them.
        stop: what ended the answer, where `token_ids` reach to its end: the text ends before it.
    """
    text = str(tokenizer.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))
    num_cut = None if stop is None else stop.num_cut_characters
    return text if num_cut is None else text[: max(0, len(text) - num_cut)]


def _token_ids(tokenizer: Any, text: str, add_special_tokens: bool) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=add_special_tokens))
