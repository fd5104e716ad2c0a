"""Whether an answer is what its grammar asks for, by validators other than the grammar's library.

JSON schemas are validated by the package jsonschema on the decoded text, regular expressions by Python's `re`. Lark
answers are not validated.
"""

from __future__ import annotations

import json
import re
from typing import Any

from harness.config.constraint import GrammarKind

NOT_INSTALLED = (
    "constraint: expected the package jsonschema, which validates answers, found none; install it with pip install -e "
    "'.[grammar]'"
)


def check_validator(kind: GrammarKind) -> None:
    """Raises ValueError when what validates answers is not installed."""
    if kind is GrammarKind.json_schema:
        _validator_for({})


def is_valid(kind: GrammarKind, grammar: str, text: str) -> bool | None:
    """Whether the text of an answer is valid; None where no validator exists.

    Args:
        kind: the language of the grammar.
        grammar: its text.
        text: the decoded answer, without special tokens.
    """
    if kind is GrammarKind.lark:
        return None
    if kind is GrammarKind.regex:
        return re.fullmatch(grammar, text) is not None
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return bool(_validator_for(json.loads(grammar)).is_valid(value))


def _validator_for(schema: Any) -> Any:
    """A validator of the draft that the schema names."""
    try:
        from jsonschema.validators import Draft202012Validator, validator_for
    except ImportError as error:
        raise ValueError(NOT_INSTALLED) from error
    return validator_for(schema, default=Draft202012Validator)(schema)
