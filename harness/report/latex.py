r"""A table as LaTeX, for a paper: booktabs rules, intervals in small brackets, the definitions below.

The text needs the packages booktabs, graphicx and rotating. A value with its interval is written as
\withinterval{value}{low}{high}, whose layout a paper can set itself, by defining the command before the table.
This module knows text; it does not know what a table is about.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from textwrap import wrap

from harness.report.number_format import NOT_AVAILABLE, read_printed
from harness.report.table import Table

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
    "’": "'",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
}


def to_latex(table: Table) -> str:
    """The table as one float, or several where it is long, with its definitions below the first."""
    columns = [index for index in range(len(table.header)) if _says_something(table, index)]
    step = MAX_ROWS[_environment(columns)]
    parts = [table.rows[start : start + step] for start in range(0, len(table.rows), step)] or [()]
    floats = []
    for number, rows in enumerate(parts, start=1):
        title = table.title + (f" ({number} of {len(parts)})" if len(parts) > 1 else "")
        floats += _float(table, title, columns, rows, notes=table.notes if number == 1 else ())
    return "\n".join([PREAMBLE, *floats]) + "\n"


def escape(text: str) -> str:
    """Any text as LaTeX; a character that LaTeX's fonts may lack as its code."""
    return "".join(ESCAPES.get(letter) or (letter if _is_printable(letter) else _code(letter)) for letter in text)


def number_text(text: str) -> str:
    """A printed number, with its interval if it has one; any other text escaped."""
    found = read_printed(text)
    if found is None:
        return escape(text)
    sign = r"\ensuremath{\times}\," if found.sign else ""
    value, low, high = (part.replace(",", "{,}") for part in (found.value, found.low, found.high))
    if low:
        shown = f"\\withinterval{{{value}}}{{{low}}}{{{high}}}"
    else:
        missing = rf"\,{{\scriptsize {{[}}{NOT_AVAILABLE}{{]}}}}" if NOT_AVAILABLE in text else ""
        shown = rf"\ensuremath{{{value}}}{missing}"
    return sign + shown + (rf"\,{{\scriptsize ({escape(found.remark)})}}" if found.remark else "")


def _float(table: Table, title: str, columns: Sequence[int], rows, notes: Sequence[str]) -> list[str]:
    """One float with some of the rows and columns of a table."""
    environment = _environment(columns)
    sides = ["r" if _is_number_column(table, index) else "l" for index in columns]
    return [
        rf"\begin{{{environment}}}[p]",
        r"\centering\small",
        rf"\caption{{{escape(title)}}}",
        rf"\label{{tab:{re.sub('[^a-z0-9]+', '-', title.lower()).strip('-')}}}",
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{@{{}}{''.join(sides)}@{{}}}}",
        r"\toprule",
        _row([_header(table.header[index], side) for index, side in zip(columns, sides, strict=True)]),
        r"\midrule",
        *(_row([number_text(row[index]) for index in columns]) for row in rows),
        r"\bottomrule",
        r"\end{tabular}}",
        *_below(notes),
        rf"\end{{{environment}}}",
    ]


def _environment(columns: Sequence[int]) -> str:
    return "sidewaystable" if len(columns) > WIDE_COLUMNS else "table"


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


def _says_something(table: Table, index: int) -> bool:
    return not table.rows or any(row[index] not in ("", "–") for row in table.rows)


def _is_number_column(table: Table, index: int) -> bool:
    shown = [row[index] for row in table.rows if row[index] not in ("", "–", NOT_AVAILABLE)]
    return bool(shown) and all(read_printed(text) for text in shown)


def _is_printable(letter: str) -> bool:
    """Whether the Latin fonts of LaTeX have it."""
    return " " <= letter <= "~" or "\u00c0" <= letter <= "\u017f"


def _code(letter: str) -> str:
    return " " if letter.isspace() else f"{{[}}U+{ord(letter):04X}{{]}}"
