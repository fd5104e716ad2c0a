"""GGUF files, as llama.cpp serves them: which file a path means, what its header says, and its tokenizer.

Source: the GGUF specification of ggml (versions 2 and 3, little-endian). Weights are not read: servers load them. A
tokenizer is built from the vocabulary in the header where its pre-tokenizer is one of `SPLITS`; a folder that holds the
file beside tokenizer files has theirs.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.models.checkpoint import CheckpointError

SUFFIX = ".gguf"
MAGIC = b"GGUF"
VERSIONS = (2, 3)
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Type of a value -> its format in `struct`."""
STRING, ARRAY = 8, 9
UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4
"""Types of tokens that are looked for in the text before it is split."""
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLITS = {
    "gpt-2": (_GPT2,),
    "smollm": (r"\p{N}", _GPT2),
    "llama-bpe": (_CL100K.format(digits="{1,3}"),),
    "qwen2": (_CL100K.format(digits=""),),
}
"""tokenizer.ggml.pre -> expressions that split a text into words, one after the other."""
AS_LLAMA_3 = ("llama-bpe",)
"""Those with which llama.cpp takes a word that is a token as it is, even where no merges lead to it, and begins texts
with the first token unless the file says otherwise."""


def is_gguf(path: str | Path | None) -> bool:
    """Whether a path names such a file."""
    return path is not None and str(path).endswith(SUFFIX)


def gguf_in(path: str) -> Path | None:
    """The GGUF file that a path means: the file itself, or the only one in a folder; None where there is none.

    Raises:
        CheckpointError: a folder has several.
    """
    place = Path(path).expanduser()
    if is_gguf(place) and place.is_file():
        return place
    found = sorted(place.glob(f"*{SUFFIX}")) if place.is_dir() else []
    if len(found) > 1:
        names = ", ".join(item.name for item in found)
        raise CheckpointError(f"{path}: expected one GGUF file in the folder, found {names}; give the file itself")
    return found[0] if found else None


class _Reader:
    """Values one after the other."""

    def __init__(self, content: mmap.mmap) -> None:
        self._content, self._place = content, 0

    def bytes(self, length: int) -> bytes:
        end = self._place + length
        if not self._place <= end <= len(self._content):
            raise ValueError("it ends within its header")
        found = self._content[self._place : end]
        self._place = end
        return found

    def number(self, kind: str) -> Any:
        return struct.unpack(f"<{kind}", self.bytes(struct.calcsize(f"<{kind}")))[0]

    def text(self) -> str:
        return self.bytes(self.number("Q")).decode(errors="replace")

    def value(self, kind: int) -> Any:
        if kind in NUMBERS:
            return self.number(NUMBERS[kind])
        if kind == STRING:
            return self.text()
        if kind != ARRAY:
            raise ValueError(f"a value of type {kind}")
        kind, length = self.number("I"), self.number("Q")
        if kind in NUMBERS:
            return list(struct.unpack(f"<{length}{NUMBERS[kind]}", self.bytes(length * struct.calcsize(NUMBERS[kind]))))
        return [self.value(kind) for _ in range(length)]


def read_header(path: Path) -> Mapping[str, Any]:
    """The keys and values of a GGUF file.

    Raises:
        CheckpointError: it is none, or not whole.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            reader = _Reader(content)
            if reader.bytes(len(MAGIC)) != MAGIC or reader.number("I") not in VERSIONS:
                raise ValueError(f"other first bytes than those of versions {VERSIONS}")
            _, num_values = reader.number("Q"), reader.number("Q")
            return {reader.text(): reader.value(reader.number("I")) for _ in range(num_values)}
    except (OSError, ValueError, OverflowError, struct.error) as error:
        raise CheckpointError(f"{path}: expected a GGUF file, found that it is none: {error}") from error


FILE_TYPES = {
    **{0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S"},
    **{12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K"},
    **{19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL"},
    **{26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16"},
    **{36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4"},
}
"""general.file_type -> what llama.cpp calls it (llama_ftype of llama.h)."""


def file_type(path: Path) -> str:
    """How most weights of a GGUF file are stored.

    Raises:
        CheckpointError: it is none, or not whole.
    """
    stated = read_header(path).get("general.file_type")
    return "of no stated type" if stated is None else FILE_TYPES.get(stated, f"of type {stated}")


def check_tokenizer(path: Path, header: Mapping[str, Any]) -> None:
    """Raise CheckpointError where `gguf_tokenizer` cannot build the tokenizer that the header of a file names."""
    kind, split = header.get("tokenizer.ggml.model"), header.get("tokenizer.ggml.pre")
    if kind != "gpt2" or split not in SPLITS:
        raise CheckpointError(
            f"{path}: expected a byte-level BPE vocabulary with a pre-tokenizer of {', '.join(SPLITS)}, found "
            f"tokenizer.ggml.model = {kind}, tokenizer.ggml.pre = {split}; put the model's own tokenizer.json and "
            "tokenizer_config.json beside the file, and name the folder"
        )


def gguf_tokenizer(path: Path) -> Any:
    """The tokenizer of a GGUF file, with its chat template.

    Raises:
        CheckpointError: it has none that can be built.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    header = read_header(path)
    check_tokenizer(path, header)
    split = header["tokenizer.ggml.pre"]
    tokens, types = header["tokenizer.ggml.tokens"], header["tokenizer.ggml.token_type"]
    merges = [tuple(item.split(" ", 1)) for item in header["tokenizer.ggml.merges"]]
    vocabulary = {token: place for place, token in enumerate(tokens)}
    built = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=split in AS_LLAMA_3))
    words = [pre_tokenizers.Split(Regex(each), "isolated") for each in SPLITS[split]]
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    built.pre_tokenizer = pre_tokenizers.Sequence([*words, as_bytes])
    built.decoder = decoders.ByteLevel()
    apart = [(tokens[place], kind) for place, kind in enumerate(types) if kind in (UNKNOWN, CONTROL, USER_DEFINED)]
    built.add_special_tokens([AddedToken(token, special=True) for token, kind in apart if kind != USER_DEFINED])
    built.add_tokens([AddedToken(token, normalized=False) for token, kind in apart if kind == USER_DEFINED])
    ids = {role: header.get(f"tokenizer.ggml.{name}_token_id") for role, name in ROLES.items()}
    named = {f"{role}_token": tokens[token] for role, token in ids.items() if token is not None}
    if header.get("tokenizer.ggml.add_bos_token", split in AS_LLAMA_3) and "bos_token" in named:
        bos = named["bos_token"]
        built.post_processor = processors.TemplateProcessing(f"{bos} $A", special_tokens=[(bos, ids["bos"])])
    template = header.get("tokenizer.chat_template")
    return PreTrainedTokenizerFast(tokenizer_object=built, chat_template=template, **named)


ROLES = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
"""Special tokens by transformers' names and by those of GGUF."""
