"""Byte-level BPE tokenizer of the zoo: special tokens, chat template, training and saving.

Does not know where its text comes from.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB_SIZE = 6144
END_OF_TEXT = "<|endoftext|>"
SYSTEM = "<|system|>"
USER = "<|user|>"
ASSISTANT = "<|assistant|>"
END = "<|end|>"
THINK = "<think>"
END_THINK = "</think>"
SPECIAL_TOKENS = (END_OF_TEXT, SYSTEM, USER, ASSISTANT, END, THINK, END_THINK)
SHOWN_TOKENS = (THINK, END_THINK)  # part of the text: a decoder that skips special tokens must still show them
END_OF_TEXT_ID, END_ID = 0, 4

_SPECIAL = re.compile("|".join(re.escape(token) for token in SPECIAL_TOKENS))

# A word takes the blank before it, a digit stands alone (arithmetic), a newline takes the indentation after it (code).
_SPLIT = r"[ ']?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\n+[ \t]*|[ \t]+(?=[ \t]\S)|[ \t]+|\s+"

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|' + message['role'] + '|>\\n' + (message['content'] | trim) + '<|end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>\\n' -}}{%- endif -%}"
)


def train_tokenizer(texts: Iterable[str], vocab_size: int = VOCAB_SIZE) -> Tokenizer:
    """Train the tokenizer on `texts`; ids 0 to 6 are `SPECIAL_TOKENS` in order, the next 256 the bytes."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    plain = (_SPECIAL.sub("\n", text) for text in texts)
    tokenizer.train_from_iterator(plain, trainer)
    return _show_tokens(tokenizer)


def _show_tokens(tokenizer: Tokenizer) -> Tokenizer:
    content = json.loads(tokenizer.to_str())
    for token in content["added_tokens"]:
        token["special"] = token["content"] not in SHOWN_TOKENS
    return Tokenizer.from_str(json.dumps(content))


def save_tokenizer(tokenizer: Tokenizer, folder: Path, max_positions: int) -> None:
    """Write tokenizer.json, tokenizer_config.json, special_tokens_map.json and chat_template.jinja into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    names = {"bos_token": END_OF_TEXT, "eos_token": END, "pad_token": END_OF_TEXT}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **names,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_positions,
        "chat_template": CHAT_TEMPLATE,
    }
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "special_tokens_map.json").write_text(json.dumps(names, indent=2) + "\n")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)


def load_tokenizer(folder: Path) -> Tokenizer:
    """The `tokenizers` object of a saved folder."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ValueError(f"expected a tokenizer at {path}, found none: run the stage 'tokenizer' first")
    return Tokenizer.from_file(str(path))


def chat_text(turns: list[str], *, open_end: bool = False) -> str:
    """User and assistant turns in the chat template, as `CHAT_TEMPLATE` renders them.

    open_end: end with the header of the next assistant turn (a prompt) instead of a closed turn.
    """
    parts = []
    for index, turn in enumerate(turns):
        parts.append(f"{ASSISTANT if index % 2 else USER}\n{turn.strip()}{END}\n")
    return "".join(parts) + (f"{ASSISTANT}\n" if open_end else "")
