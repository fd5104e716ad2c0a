"""GSM8K: whether an answer ends with the known number (exact match).

The answer's number is the first of these that there is: the one behind the last `####` (as the data set writes it), the
one in the last `\\boxed{}`, the last of the text. They are compared as numbers: 1,000 is 1000.00.
"""

from __future__ import annotations

import re
from decimal import Decimal

_NUMBER = r"-?\d[\d,]*(?:\.\d+)?|-?\.\d+"
_MARKED = (re.compile(rf"####\s*\$?\s*({_NUMBER})"), re.compile(rf"\\boxed\{{[^{{}}\d-]*({_NUMBER})"))


def known(answer: str) -> str | None:
    """The known number in the data set's own answer; None where it ends with none."""
    found = _MARKED[0].findall(answer) or re.findall(rf"^\s*({_NUMBER})\s*$", answer)
    return found[-1] if found else None


def is_right(number: str, answer: str) -> bool:
    """Whether an answer ends with the known number.

    Args:
        number: from `known`.
        answer: of the model, without its reasoning.
    """
    marked = next((found for pattern in _MARKED if (found := pattern.findall(answer))), None)
    found = marked or re.findall(_NUMBER, answer)
    return bool(found) and _value(found[-1]) == _value(number)


def _value(number: str) -> Decimal:
    return Decimal(number.replace(",", ""))
