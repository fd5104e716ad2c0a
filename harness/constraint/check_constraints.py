"""What can be wrong with the constraints of a run, found before anything is loaded: its grammars and parsers."""

from __future__ import annotations

from collections.abc import Sequence

from harness.constraint.grammar_text import check_given_grammar
from harness.constraint.registry import check_parser
from harness.settings.cell import CellConfig
from harness.settings.schema import SettingsError


def check_constraints(cells: Sequence[CellConfig]) -> None:
    """Look at every constraint that some cell uses.

    Raises:
        SettingsError: no such parser, a grammar that cannot be followed, or nothing installed to follow it with.
    """
    used = [cell.constraint for cell in cells if cell.constraint.policy is not None]
    try:
        for parser in dict.fromkeys(item.parser for item in used):
            check_parser(parser)
        for kind, grammar in dict.fromkeys((item.kind, item.grammar) for item in used):
            if grammar is not None:
                check_given_grammar(kind, grammar)
    except ValueError as error:
        raise SettingsError(str(error)) from error
