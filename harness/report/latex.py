r"""A table as LaTeX, for a paper: booktabs rules, intervals in small brackets, the definitions below.

The text needs the packages booktabs, graphicx and rotating. A value with its interval is written as
\withinterval{value}{low}{high}, whose layout a paper can set itself, by defining the command before the table.
This module does not know what a table is about.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from textwrap import wrap

from harness.report.number_format import NOT_AVAILABLE, Number
from harness.report.table import Entry, Table

MAX_ROWS = {"table": 40, "sidewaystable": 22}
"""Of one float, by its environment; a longer table goes on in another one."""
WIDE_COLUMNS = 10
"""A table with more columns is turned."""
HEADER_CHARACTERS = 14
"""Of a line of a header."""
PREAMBLE = r"""% needs \usepackage{booktabs,graphicx,rotating}
\providecommand{\withinterval}[3]{\ensuremath{#1}\,{\scriptsize\ensuremath{[#2,\,#3]}}}"""
ESCAPES = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\ensuremath{<}",
    ">": r"\ensuremath{>}",
    "|": r"\ensuremath{|}",
    '"': "''",
    # after the end of a row these would be read as its options
    "[": "{[}",
    "]": "{]}",
    "*": "{*}",
    "–": "--",
    "—": "---",
    "−": r"\ensuremath{-}",
    "×": r"\ensuremath{\times}",
    "·": r"\ensuremath{\cdot}",
    "±": r"\ensuremath{\pm}",
    "≥": r"\ensuremath{\geq}",
    "≤": r"\ensuremath{\leq}",
    "≡": r"\ensuremath{\equiv}",
    "…": r"\ldots{}",
    "†": r"\ensuremath{\dagger}",
    "→": r"\ensuremath{\rightarrow}",
    "’": "'",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
}


def to_latex(table: Table) -> str:
    """The table as one float, or several where it is long, with its definitions below the first."""
    return "\n".join([PREAMBLE, *float_lines(table)]) + "\n"


def float_lines(table: Table) -> list[str]:
    """The same without what must stand before it."""
    table = table.compact
    step = MAX_ROWS[_environment(table)]
    parts = [table.rows[start : start + step] for start in range(0, len(table.rows), step)] or [()]
    floats = []
    for number, rows in enumerate(parts, start=1):
        title = table.title + (f" ({number} of {len(parts)})" if len(parts) > 1 else "")
        floats += _float(table, title, rows, notes=_notes(table) if number == 1 else ())
    return floats


def escape(text: str) -> str:
    """Any text as LaTeX; a character that LaTeX's fonts may lack as its code."""
    return "".join(ESCAPES.get(letter) or (letter if _is_printable(letter) else _code(letter)) for letter in text)


def entry_text(entry: Entry) -> str:
    """An entry of a table: a number with its interval if it has one, or any text escaped."""
    if not isinstance(entry, Number) or entry.is_missing:
        return escape(str(entry))
    value = entry.value_text.replace(",", "{,}")
    if entry.shown:
        shown = escape(entry.shown)
    elif entry.bounds is not None and entry.bounds[0]:
        low, high = (end.replace(",", "{,}") for end in entry.bounds)
        shown = f"\\withinterval{{{value}}}{{{low}}}{{{high}}}"
    else:
        missing = "" if entry.bounds is None else rf"\,{{\scriptsize {{[}}{NOT_AVAILABLE}{{]}}}}"
        shown = rf"\ensuremath{{{value}}}{missing}"
    if entry.values:
        shown += rf"\,{{\scriptsize {escape('{' + ', '.join(entry.values_texts) + '}')}}}"
    sign = escape(entry.sign) + r"\," if entry.sign else ""
    shown += escape(entry.mark)
    return sign + shown + (rf"\,{{\scriptsize ({escape(entry.note)})}}" if entry.note else "")


def _float(table: Table, title: str, rows: Sequence[Sequence[Entry]], notes: Sequence[str]) -> list[str]:
    """One float with some of the rows of a table."""
    environment = _environment(table)
    sides = ["r" if table.is_number_column(index) else "l" for index in range(len(table.header))]
    return [
        rf"\begin{{{environment}}}[p]",
        r"\centering\small",
        rf"\caption{{{escape(title)}}}",
        rf"\label{{tab:{re.sub('[^a-z0-9]+', '-', title.lower()).strip('-')}}}",
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{@{{}}{''.join(sides)}@{{}}}}",
        r"\toprule",
        _row([_header(label, side) for label, side in zip(table.header, sides, strict=True)]),
        r"\midrule",
        *(_row(list(map(entry_text, row))) for row in rows),
        r"\bottomrule",
        r"\end{tabular}}",
        *_below(notes),
        rf"\end{{{environment}}}",
    ]


def _environment(table: Table) -> str:
    return "sidewaystable" if len(table.header) > WIDE_COLUMNS else "table"


def _notes(table: Table) -> tuple[str, ...]:
    return (table.above, *table.notes) if table.above else table.notes


def _header(text: str, side: str) -> str:
    """A header in lines, so that long names do not widen the table."""
    lines = [escape(line) for line in wrap(text, HEADER_CHARACTERS, break_long_words=False, break_on_hyphens=False)]
    return lines[0] if len(lines) == 1 else rf"\shortstack[{side}]{{" + r"\\".join(lines) + "}"


def _below(notes: Sequence[str]) -> list[str]:
    """The definitions; not in the caption, which TeX sets in one line first and would find too long."""
    if not notes:
        return []
    return [r"\par\medskip", r"\begin{minipage}{\linewidth}\scriptsize", *map(_sentence, notes), r"\end{minipage}"]


def _sentence(note: str) -> str:
    text = escape(note[0].upper() + note[1:])
    return text if text.endswith(".") else f"{text}."


def _row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _is_printable(letter: str) -> bool:
    """Whether the Latin fonts of LaTeX have it."""
    return " " <= letter <= "~" or "\u00c0" <= letter <= "\u017f"


def _code(letter: str) -> str:
    return " " if letter.isspace() else f"{{[}}U+{ord(letter):04X}{{]}}"
