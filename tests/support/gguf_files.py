"""Small GGUF files: a header with a byte-level vocabulary, and no weights."""

import struct

from tokenizers import pre_tokenizers

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
MERGES = ["Ġ w", "1 2", "h i", "Ġw o", "W E", "' L", "'L L"]
SPECIAL = ["<|end|>", "<|start|>"]
TOKENS = [*SPECIAL, *BYTES, *(merge.replace(" ", "") for merge in MERGES)]
CONTROL, NORMAL = 3, 1


def text(value):
    return struct.pack("<Q", len(value.encode())) + value.encode()


def entry(key, value):
    """A key and its value, as the type of Python says."""
    if isinstance(value, bool):
        return text(key) + struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return text(key) + struct.pack("<II", 4, value)
    if isinstance(value, str):
        return text(key) + struct.pack("<I", 8) + text(value)
    kind = 8 if isinstance(value[0], str) else 5
    items = b"".join(text(item) if kind == 8 else struct.pack("<i", item) for item in value)
    return text(key) + struct.pack("<IIQ", 9, kind, len(value)) + items


def header(**changes):
    """Keys and values of a file; a change of None leaves one out."""
    found = {
        "general.architecture": "llama",
        "llama.context_length": 8192,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": [CONTROL] * len(SPECIAL) + [NORMAL] * (len(TOKENS) - len(SPECIAL)),
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": "{% for m in messages %}<|start|>{{ m['content'] }}<|end|>{% endfor %}",
    }
    found |= {name.replace("__", "."): value for name, value in changes.items()}
    return {key: value for key, value in found.items() if value is not None}


def write_gguf(path, version=3, **changes):
    """Write a file and return its path."""
    values = header(**changes)
    content = b"GGUF" + struct.pack("<IQQ", version, 0, len(values))
    path.write_bytes(content + b"".join(entry(key, value) for key, value in values.items()))
    return path
