"""Tables as LaTeX: escaped text, numbers with their intervals, rows that fit their columns, and TeX itself, if any."""

import re
import shutil
import subprocess
from math import nan

import pytest

from harness.report.latex import MAX_ROWS, entry_text, escape, to_latex
from harness.report.number_format import Number, count
from harness.report.table import Table
from harness.report.tables.methods import method_tables, paired_table
from harness.report.tables.summary import summary_table
from tests.support.synthetic_cells import analysed, baseline_settings, config, simulated_cell

pytestmark = pytest.mark.fast

HOSTILE = 'a_b 50% & #1 $x$ {y} \\input~^<>|"*[c] − × · – 中'


def cells():
    drafted = [
        simulated_cell(config(verification__method=method), [0.6, 0.5, 0.4], seed=index, num_prompts=4)
        for index, method in enumerate(("strict", "typical"))
    ]
    return analysed(simulated_cell(baseline_settings(), [], num_prompts=4), *drafted)


def tables():
    found = cells()
    hostile = Table(HOSTILE, ("[name]", "value"), (("[a]", Number(1.0, 0.5, 1.5)), ("*b", HOSTILE)), (HOSTILE,))
    return [summary_table(found), *method_tables(found), paired_table(found), hostile]


@pytest.mark.parametrize(
    ("entry", "printed", "latex"),
    [
        (Number(2.21, 2.134, 2.29), "2.21 [2.13, 2.29]", r"\withinterval{2.21}{2.13}{2.29}"),
        (
            Number(12345.6, -1, 2, signed=True),
            "+12,346 [-1, +2]",
            r"\withinterval{+12{,}346}{-1}{+2}",
        ),
        (
            Number(0.91, 0.78, 0.99, style="length", sign="×"),
            "× 0.91 [0.78, 0.99]",
            r"\ensuremath{\times}\,\withinterval{0.91}{0.78}{0.99}",
        ),
        (Number(100, nan, nan), "100 [n/a]", r"\ensuremath{100}\,{\scriptsize {[}n/a{]}}"),
        (count(0, "same law"), "0 (same law)", r"\ensuremath{0}\,{\scriptsize (same law)}"),
        (Number(0, 0, 0, signed=True), "0", r"\ensuremath{0}"),
        (Number(1e-310, shown="< 1e-300"), "< 1e-300", r"\ensuremath{<} 1e-300"),
        (Number(1.2e-5, style="scientific"), "1.2e-05", r"\ensuremath{1.2e-05}"),
        (Number(nan, nan, nan), "n/a", "n/a"),
        ("draft_model", "draft_model", r"draft\_model"),
    ],
)
def test_an_entry_keeps_its_interval_and_note_in_text_and_in_latex(entry, printed, latex):
    assert str(entry) == printed and entry_text(entry) == latex


def test_escaped_text_has_no_character_with_a_meaning_of_its_own():
    """Would catch a setting that comments out the end of a row, or starts another column."""
    left = re.sub(r"\\[&%$#_{}]|\\text\w+\{\}|\\ensuremath\{(\\\w+|[<>|-])\}|\{[][*]\}", "", escape(HOSTILE))
    assert not set(left) & set('&%$#_{}~^\\<>|"*[]') and left.isascii() and "U+4E2D" in left


def test_every_row_has_the_columns_that_the_table_declares():
    """Would catch a column that is dropped in the rows and not in the header, and braces that do not close."""
    for table in tables():
        text = to_latex(table)
        (sides,) = re.findall(r"\\begin\{tabular\}\{@\{\}([lr]+)@\{\}\}", text)
        lines = text[text.index(r"\toprule") : text.index(r"\bottomrule")].splitlines()
        rows = [line for line in lines if line.endswith(r" \\")]
        assert len(rows) == 1 + len(table.rows)
        assert all(len(re.findall(r"(?<!\\)&", row)) == len(sides) - 1 for row in rows)
        without_escapes = re.sub(r"\\[{}]", "", text)
        assert without_escapes.count("{") == without_escapes.count("}")
        assert text.count(r"\begin{") == text.count(r"\end{")


def test_columns_without_content_are_left_out_and_long_tables_go_on():
    rows = tuple((str(index), "", "–") for index in range(MAX_ROWS["table"] + 1))
    text = to_latex(Table("Long", ("name", "labels", "nothing"), rows, ("a note",)))
    assert text.count(r"\begin{table}") == 2 and "Long (1 of 2)" in text and "Long (2 of 2)" in text
    assert text.count("A note.") == 1 and "labels" not in text and "nothing" not in text


def test_tex_takes_every_table(tmp_path):
    if shutil.which("pdflatex") is None or shutil.which("kpsewhich") is None:
        pytest.skip("needs pdflatex")
    packages = ("booktabs", "graphicx", "rotating")
    for name in packages:
        if not subprocess.run(["kpsewhich", f"{name}.sty"], capture_output=True, check=False).stdout:
            pytest.skip(f"needs the LaTeX package {name}")
    body = "\n".join(to_latex(table) for table in tables())
    lines = [r"\documentclass{article}", rf"\usepackage{{{','.join(packages)}}}", r"\begin{document}", body]
    (tmp_path / "tables.tex").write_text("\n".join([*lines, r"\end{document}"]))
    call = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "tables.tex"]
    result = subprocess.run(call, cwd=tmp_path, capture_output=True, check=False)
    assert result.returncode == 0, result.stdout[-2000:].decode(errors="replace")
