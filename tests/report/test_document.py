"""Documents: that every renderer holds everything, and that text from outside means nothing in any of them."""

import csv
import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from enum import Enum

import pytest

from harness.report.document import Document, Picture, Section, write_report
from harness.report.files import csv_text, json_text
from harness.report.number_format import Number
from harness.report.table import Table, table_of

HOSTILE = "a_b 50% & #1 $x$ {y} \\input~^<b>|*[c] − × 中"


@pytest.fixture
def document(tmp_path):
    from PIL import Image

    (tmp_path / "figures").mkdir()
    Image.new("RGB", (32, 16)).save(tmp_path / "figures" / "a_figure.png")
    table = Table(
        "Times", ("name", "time (us)"), ((HOSTILE, Number(2.21, 2.13, 2.29)), ("other", Number(3.0))), ("a note",)
    )
    picture = Picture(tmp_path / "figures" / "a_figure.png", "A figure")
    return Document(
        f"Title {HOSTILE}",
        (("Command", "`python -m x --y`"),),
        ("A paragraph.",),
        (
            Section("Warnings", items=(HOSTILE,), is_warning=True),
            Section("Times", tables=(table,), pictures=(picture,)),
        ),
        ("A definition.",),
        [{"git": {"commit": "abc"}}, {"git": {"commit": "def"}}],
    )


def test_every_renderer_holds_everything(document, tmp_path):
    """Would catch a part that one of the three formats leaves out, and a link that leads nowhere."""
    markdown, html, latex = (path.read_text() for path in write_report(document, tmp_path, "report", {}))
    for text in (markdown, html, latex):
        for words in (
            "A paragraph.",
            "Warnings",
            "A definition.",
            "git.commit",
            "abc, def",
            "2.21",
            "2.29",
            "A figure",
        ):
            assert words in text
        assert "python -m x" in text and "`" not in text.replace("`python -m x --y`", "")
    assert "](figures/a_figure.png)" in markdown and "{figures/a_figure.png}" in latex
    assert markdown.count("Times") == 1 and "A note." in latex


def test_text_from_outside_means_nothing(document, tmp_path):
    _, html, latex = (path.read_text() for path in write_report(document, tmp_path, "report", {}))
    assert "<b>" not in html
    assert r"a\_b 50\% \& \#1 \$x\$ \{y\} \textbackslash{}input" in latex and "U+4E2D" in latex
    without_escapes = re.sub(r"\\[{}]", "", latex)
    assert without_escapes.count("{") == without_escapes.count("}") and latex.count(r"\begin{") == latex.count(r"\end{")


class Shade(Enum):
    dark = "a dark one"


@dataclass(frozen=True)
class Item:
    name: str
    shade: Shade
    sizes: tuple[float, ...] = ()
    inner: "Item | None" = None


def test_programs_read_beside_it_what_was_found(tmp_path):
    """Would catch an enum by its name, a dataclass in a list that is left as text, and None that is no empty field."""
    item = Item("a, b", Shade.dark, (1.5,), Item("c", Shade.dark))
    beside = {"found.json": json_text({"items": [item]}), "found.csv": csv_text(["x", "y"], [["a, b", None], [0, "c"]])}
    paths = write_report(Document("Title"), tmp_path / "new", "report", beside)
    assert [path.name for path in paths] == ["report.md", "report.html", "report.tex", *beside]
    inner = {"name": "c", "shade": "a dark one", "sizes": [], "inner": None}
    expected = {"name": "a, b", "shade": "a dark one", "sizes": [1.5], "inner": inner}
    assert json.loads(paths[3].read_text()) == {"items": [expected]}
    assert list(csv.reader(paths[4].read_text().splitlines())) == [["x", "y"], ["a, b", ""], ["0", "c"]]


def test_a_table_has_a_column_for_each_function():
    """Would catch entries under the header of another column, and None that is printed."""
    columns = (("name", lambda each: each.name), ("size", lambda each: Number(each.sizes[0]) if each.sizes else None))
    table = table_of("Items", [Item("a", Shade.dark, (2.0,)), Item("b", Shade.dark)], columns)
    assert (table.header, table.texts) == (("name", "size"), (("a", "2.00"), ("b", "–")))


def test_tex_takes_a_document(document, tmp_path):
    if shutil.which("pdflatex") is None:
        pytest.skip("needs pdflatex")
    write_report(document, tmp_path, "report", {})
    call = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "report.tex"]
    result = subprocess.run(call, cwd=tmp_path, capture_output=True, check=False)
    assert result.returncode == 0, result.stdout[-2000:].decode(errors="replace")
