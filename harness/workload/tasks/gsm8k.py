"""GSM8K: whether an answer ends with the known number (exact match).

The answer's number is the last that is marked as one, behind `####` (as the data set writes it) or in `\\boxed{}`; the
last of the text where none is. A Markdown heading such as `#### 2. Add up` marks none. Numbers are compared as such:
1,000 and LaTeX's 1{,}000 are 1000.00.
"""

from __future__ import annotations

import re
from decimal import Decimal

# a dash behind a digit is that of a difference, or of a range
_NUMBER = r"(?:(?<!\d)-)?(?:\d[\d,]*(?:\.\d+)?|\.\d+)"
_AS_WRITTEN = rf"####\s*\$?\s*({_NUMBER})(?![.):]\s*[^\W\d]|[\d,]|\.\d)"
_MARKED = re.compile(rf"{_AS_WRITTEN}|\\boxed\{{[^{{}}\d-]*({_NUMBER})")
_LATEX_SPACE = re.compile(r"\{,\}|\\[,!]")


def known(answer: str) -> str | None:
    """The known number in the data set's own answer; None where it ends with none."""
    found = re.findall(_AS_WRITTEN, answer) or re.findall(rf"^\s*({_NUMBER})\s*$", answer)
    return found[-1] if found else None


def is_right(number: str, answer: str) -> bool:
    """Whether an answer ends with the known number.

    Args:
        number: from `known`.
        answer: of the model, without its reasoning.
    """
    text = _LATEX_SPACE.sub("", answer)
    marked = [behind or boxed for behind, boxed in _MARKED.findall(text)]
    found = marked or re.findall(_NUMBER, text)
    return bool(found) and _value(found[-1]) == _value(number)


def _value(number: str) -> Decimal:
    return Decimal(number.replace(",", ""))
