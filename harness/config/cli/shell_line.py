"""Words as a line that a shell reads back as these words."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

_SIGNS = {"\\": r"\\", "'": r"\'", "\n": r"\n", "\t": r"\t", "\r": r"\r"}


def shell_line(words: Iterable[str]) -> str:
    """One line: a word with a line break, or another sign that is not printed, as bash and zsh write it ($'a\\nb')."""
    return " ".join(shlex.quote(word) if word.isprintable() else f"$'{_written(word)}'" for word in words)


def _written(word: str) -> str:
    return "".join(_SIGNS.get(sign, sign if sign.isprintable() else f"\\U{ord(sign):08x}") for sign in word)
