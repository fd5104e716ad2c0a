"""Conversations as files give them, with roles: the messages of chat templates, and ShareGPT's.

    {"role": "user", "content": "..."}      roles system, user, assistant, tool; content is text, or parts of text
    {"from": "human", "value": "..."}       ShareGPT: human, gpt, system

What of them is asked is `workload.history`. This module knows neither files nor tokenizers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from harness.config.workload import History
from harness.records.strict_json import shown
from harness.workload.line_keys import REFUSED, check_known, check_not_refused
from harness.workload.prompt import Prompt

_READ = {
    "system": ("role", "content"),
    "user": ("role", "content"),
    "assistant": ("role", "content", "tool_calls", "reasoning_content"),
    "tool": ("role", "content", "tool_call_id", "name"),
}
"""Roles, and the keys that are read of a message of each."""
_ROLE_OF = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}
"""What ShareGPT's files call them."""
_OF_SHARE_GPT = ("from", "value", "weight", "loss")
_NEEDS_HISTORY = "workload.history=given or last asks it with its own answers as context"


def is_conversation(value: Any) -> bool:
    """Whether a value is a list of messages, of either layout."""
    keys = [set(item) & {"role", "from"} if isinstance(item, Mapping) else set() for item in value or ()]
    return isinstance(value, list) and bool(value) and all(keys)


def prompt_of(
    prompt_id: str,
    category: str,
    value: Any,
    history: History = History.generated,
    *,
    system: str | None = None,
    tools: Any = None,
) -> Prompt:
    """The prompt that a conversation asks for.

    Args:
        value: the messages.
        history: whose answers stand between the turns.
        system: a system message that stands beside them.
        tools: JSON schemas of the tools that the chat template gets.

    Raises:
        ValueError: a message is of another form, or would be lost.
    """
    messages = _messages(value)
    if system is not None:
        if messages[0]["role"] == "system":
            raise ValueError("expected one system message, found one among the messages and one beside them")
        messages.insert(0, {"role": "system", "content": system})
    _check_order(messages)
    given_tools = None if tools is None else json.dumps(_checked_tools(tools))
    if history is History.generated:
        return _generated(prompt_id, category, messages, given_tools)
    ends = [end for end in range(1, len(messages) + 1) if _is_asked(messages, end)]
    if not ends:
        raise ValueError("expected a message of the user, found none")
    if history is History.last:
        ends = ends[-1:]
    return Prompt(
        prompt_id,
        category,
        tuple(_shown_turn(messages[end - 1]) for end in ends),
        histories=tuple(json.dumps(messages[:end]) for end in ends),
        tools=given_tools,
    )


def _is_asked(messages: Sequence[Mapping[str, Any]], end: int) -> bool:
    """Whether the file has an answer to the first messages, or they are all and wait for one."""
    is_answered = end == len(messages) or messages[end]["role"] == "assistant"
    return messages[end - 1]["role"] in ("user", "tool") and is_answered


def _generated(prompt_id: str, category: str, messages: list[dict[str, Any]], tools: str | None) -> Prompt:
    """The user's turns, behind the system message and a greeting; the answers between them are the model's own."""
    first = next((place for place, item in enumerate(messages) if item["role"] == "user"), None)
    if first is None:
        raise ValueError("expected at least one message of the user, found none")
    if any(item["role"] == "tool" or "tool_calls" in item for item in messages):
        raise ValueError(f"expected messages of user and assistant, found a call of a tool: {_NEEDS_HISTORY}")
    turns = tuple(item["content"] for item in messages if item["role"] == "user")
    return Prompt(prompt_id, category, turns, opening=json.dumps(messages[:first]) if first else None, tools=tools)


def _shown_turn(message: Mapping[str, Any]) -> str:
    return message["content"] if message["content"].strip() else f"({message['role']})"


def _messages(value: Any) -> list[dict[str, Any]]:
    if not is_conversation(value):
        raise ValueError(f"expected a list of messages with role and content, or from and value, found {shown(value)}")
    return [_of_share_gpt(item) if "from" in item else _of_template(item) for item in value]


def _of_template(message: Mapping[str, Any]) -> dict[str, Any]:
    role = message["role"]
    if role not in _READ:
        raise ValueError(f"expected a role among {', '.join(_READ)}, found {shown(role)}")
    given = {name: value for name, value in message.items() if value is not None}
    check_not_refused(given, _READ[role])
    check_known(given, _READ[role])
    calls = [] if role != "assistant" else given.get("tool_calls", [])
    if not isinstance(calls, list):
        raise ValueError(f"expected tool_calls as a list, found {shown(calls)}")
    kept = {name: given[name] for name in _READ[role][2:] if given.get(name) not in (None, "", [])}
    return {"role": role, "content": _text(given.get("content", "" if calls else None), role), **kept}


def _of_share_gpt(message: Mapping[str, Any]) -> dict[str, Any]:
    role = _ROLE_OF.get(message["from"]) if isinstance(message["from"], str) else None
    if role is None:
        raise ValueError(
            f"expected from as one of {', '.join(_ROLE_OF)}, found {shown(message['from'])}: "
            "write calls of tools as messages with role and content"
        )
    check_known(message, _OF_SHARE_GPT)
    return {"role": role, "content": _text(message.get("value"), role)}


def _text(content: Any, role: str) -> str:
    """The text of a message; parts of text are joined as they stand."""
    if isinstance(content, list):
        for part in content:
            kind = part.get("type") if isinstance(part, Mapping) else None
            if kind != "text" or not isinstance(part.get("text"), str):
                found = shown(part) if kind in (None, "text") else f"a part of type {kind}: {REFUSED['images']}"
                raise ValueError(f"expected parts of text, found {found}")
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise ValueError(f"expected a content of text, found {shown(content)}")
    if role == "user" and not content.strip():
        raise ValueError("expected text in every message of the user, found none")
    return content


def _check_order(messages: Sequence[Mapping[str, Any]]) -> None:
    """A system message comes first, and what a tool says behind a call."""
    for before, item in zip([None, *messages], messages, strict=False):
        if item["role"] == "system" and before is not None:
            raise ValueError("expected a system message in front of all others, found one behind them")
        if item["role"] == "tool" and (before is None or before["role"] not in ("assistant", "tool")):
            raise ValueError("expected a tool's message behind the call of it, found one elsewhere")


def _checked_tools(tools: Any) -> list[Any]:
    if not isinstance(tools, list) or not all(isinstance(item, Mapping) for item in tools):
        raise ValueError(f"expected tools as a list of objects, found {shown(tools)}")
    return tools
