"""The text of a grammar for llguidance, and what llguidance finds wrong with it; needs neither tokenizer nor torch."""

from __future__ import annotations

import re
from typing import Any

from harness.config.constraint import GrammarKind

NOT_INSTALLED = (
    "constraint: grammars need the package llguidance, found none; install it with pip install -e '.[grammar]'"
)


class UnusableGrammarError(ValueError):
    """A grammar that the library cannot follow."""


def library_grammar(kind: GrammarKind, text: str) -> str:
    """A grammar as llguidance wants it.

    Raises:
        UnusableGrammarError: llguidance cannot read it.
        ValueError: llguidance is not installed.
    """
    matcher = _library()
    write = {
        GrammarKind.json_schema: matcher.grammar_from_json_schema,
        GrammarKind.regex: matcher.grammar_from_regex,
        GrammarKind.lark: matcher.grammar_from_lark,
    }[kind]
    try:
        return str(write(text))
    except ValueError as error:
        raise unusable(kind, str(error)) from error


def check_grammar(kind: GrammarKind, text: str) -> None:
    """Raise what `library_grammar` raises, also for a grammar that llguidance reads and cannot follow.

    A regular expression must be one for Python's re too, by which answers are validated
    (harness.engine.constraint.validity).
    """
    reason = str(_library().validate_grammar(library_grammar(kind, text), None))
    if reason:
        raise unusable(kind, reason)
    if kind is GrammarKind.regex:
        try:
            re.compile(text)
        except re.error as error:
            raise UnusableGrammarError(f"expected a regex that Python's re can read, it says: {error}") from error


def check_given_grammar(kind: GrammarKind, text: str) -> None:
    """Check a grammar that the settings give for every answer; the error names the setting and what it holds."""
    try:
        check_grammar(kind, text)
    except UnusableGrammarError as error:
        raise refusal(text, error) from error


def refusal(text: str, error: UnusableGrammarError) -> ValueError:
    """The error message for a grammar that the settings give for every answer."""
    return ValueError(
        f"constraint.grammar: {error}; found {text!r}: mend it, or choose the constraint.kind that it is written in"
    )


def unusable(kind: GrammarKind, reason: str) -> UnusableGrammarError:
    """The error for llguidance's message, in one line: without the carets that point into a line above."""
    shown = " ".join(line.strip() for line in reason.splitlines() if line.strip(" ^"))
    return UnusableGrammarError(f"expected a {kind.value} that llguidance can follow, it says: {shown}")


def _library() -> Any:
    try:
        from llguidance import LLMatcher
    except ImportError as error:
        raise ValueError(NOT_INSTALLED) from error
    return LLMatcher
