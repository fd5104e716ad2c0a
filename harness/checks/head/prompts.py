"""The alternatives of prompts that are tried by writing other answers: chat templates, and the switch for thinking."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from harness.workload.chat import encode_prompt
from harness.workload.prompt import Prompt


def turns_alike(turn: str, opening: str) -> str:
    """A template whose turns are all written alike, from expressions of a turn and of what opens an answer."""
    each = "{%- for message in messages -%}{{- " + turn + " -}}{%- endfor -%}"
    return each + "{%- if add_generation_prompt -%}{{- " + opening + " -}}{%- endif -%}"


class KnownTemplate(NamedTuple):
    """A chat format that several families of models have."""

    markers: tuple[str, ...]
    """Tokens without which no tokenizer is made for it."""
    text: str


def _known(markers: Sequence[str], turn: str, opening: str) -> KnownTemplate:
    return KnownTemplate(tuple(markers), turns_alike(turn, opening))


_ROLE, _CONTENT = "message['role']", "(message['content'] | trim)"
KNOWN_TEMPLATES = {
    "ChatML": _known(
        ("<|im_start|>", "<|im_end|>"),
        f"'<|im_start|>' + {_ROLE} + '\\n' + {_CONTENT} + '<|im_end|>\\n'",
        "'<|im_start|>assistant\\n'",
    ),
    "Llama 3": _known(
        ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        f"(bos_token if loop.first else '') + '<|start_header_id|>' + {_ROLE} + '<|end_header_id|>\\n\\n' + {_CONTENT}"
        " + '<|eot_id|>'",
        "'<|start_header_id|>assistant<|end_header_id|>\\n\\n'",
    ),
    "turns between <|role|> and <|end|>": _known(
        ("<|user|>", "<|assistant|>", "<|end|>"),
        f"'<|' + {_ROLE} + '|>\\n' + {_CONTENT} + '<|end|>\\n'",
        "'<|assistant|>\\n'",
    ),
    "Gemma": _known(
        ("<start_of_turn>", "<end_of_turn>"),
        f"(bos_token if loop.first else '') + '<start_of_turn>' + ('model' if {_ROLE} == 'assistant' else 'user') + "
        f"'\\n' + {_CONTENT} + '<end_of_turn>\\n'",
        "'<start_of_turn>model\\n'",
    ),
    "Mistral": _known(
        ("[INST]", "[/INST]"),
        f"(bos_token if loop.first else '') + ('[INST] ' + {_CONTENT} + '[/INST]' if {_ROLE} != 'assistant' else ' ' + "
        f"{_CONTENT} + eos_token)",
        "''",
    ),
}
"""Name -> template, of which those are tried whose markers the tokenizer has."""


@dataclass(frozen=True)
class Asking:
    """Another way to ask the same."""

    name: str
    """What is tried, in a few words."""
    fault: str
    mend: str
    template: str | None = None
    """The chat template in the place of the tokenizer's; None leaves it."""
    is_plain: bool = False
    """Without a template."""
    thinking: bool | None = None
    """The switch for reasoning; None leaves it."""


def askings(
    tokenizer: Any, prompt: Prompt, thinking: bool | None, drafter: Path | None
) -> Iterator[tuple[str, Asking]]:
    """The alternatives for a tokenizer, each with its name.

    Args:
        tokenizer: of the target.
        prompt: one of the protocol, on which templates are compared.
        thinking: as it was asked for.
        drafter: folder of the head, which may have a template.
    """
    there = encode_prompt(tokenizer, prompt, [], thinking).token_ids
    # a switch before templates: where both mend, it is the smaller step
    for value in (True, False):
        if value is not thinking and _has_switch(tokenizer, prompt, value):
            if thinking is None and encode_prompt(tokenizer, prompt, [], value).token_ids == there:
                continue
            yield (
                "thinking",
                Asking(
                    f"thinking {'on' if value else 'off'}",
                    f"thinking is {'off' if value else 'on'}, and the head was made for answers "
                    f"{'with' if value else 'without'} it",
                    f"workload.thinking={str(value).lower()}",
                    thinking=value,
                ),
            )
    found = {
        f"the one in {drafter}": text for text in [own_template(drafter)] if text is not None and drafter is not None
    }
    found |= {name: KNOWN_TEMPLATES[name].text for name in formats_of(tokenizer)}
    what = "no chat template" if tokenizer.chat_template is None else "another chat template than the head was made for"
    for name, text in found.items():
        with asked(tokenizer, text):
            differs = encode_prompt(tokenizer, prompt, []).token_ids != there
        if differs:
            yield (
                "chat template",
                Asking(
                    f"chat template: {name}",
                    f"the target's tokenizer has {what}",
                    f"give the target's folder this chat_template ({name}): {text}",
                    template=text,
                ),
            )
    if tokenizer.chat_template is not None:
        yield (
            "chat template",
            Asking(
                "no chat template",
                "the head was made for text without a chat template",
                "take chat_template out of the target's folder, or train the head on chats",
                is_plain=True,
            ),
        )


def formats_of(tokenizer: Any) -> list[str]:
    """The known templates whose markers a tokenizer has."""
    vocabulary = tokenizer.get_vocab()
    return [name for name, item in KNOWN_TEMPLATES.items() if all(marker in vocabulary for marker in item.markers)]


def unused_format(tokenizer: Any, token_ids: Collection[int]) -> str | None:
    """A known template whose markers a tokenizer has, while a prompt has none of them; None without one."""
    formats, vocabulary = formats_of(tokenizer), tokenizer.get_vocab()
    markers = {vocabulary[marker] for name in formats for marker in KNOWN_TEMPLATES[name].markers}
    return formats[0] if formats and markers.isdisjoint(token_ids) else None


def _has_switch(tokenizer: Any, prompt: Prompt, value: bool) -> bool:
    try:
        encode_prompt(tokenizer, prompt, [], value)
    except ValueError:
        return False
    return True


def own_template(folder: Path | None) -> str | None:
    """The chat template in a folder; None without one."""
    if folder is None:
        return None
    if (folder / "chat_template.jinja").is_file():
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    config = folder / "tokenizer_config.json"
    found = json.loads(config.read_text(encoding="utf-8")).get("chat_template") if config.is_file() else None
    return found if isinstance(found, str) else None


@contextmanager
def asked(tokenizer: Any, template: str | None) -> Iterator[None]:
    """Let a tokenizer have another chat template for a while."""
    before = tokenizer.chat_template
    tokenizer.chat_template = template
    try:
        yield
    finally:
        tokenizer.chat_template = before
