"""Numbers that pages quote: they are written from the tables that results/index.csv names, and no page says another."""

import re
from pathlib import Path

import pytest

from harness.report.quoted import INTERVAL, UnknownQuoteError, main, written

ROOT = Path(__file__).parents[2]


def test_every_measured_number_of_the_results_has_an_interval():
    """Would catch a number that the index does not hold, and that stays when its table changes. Settings stand in code,
    or have one decimal at most."""
    answers = (ROOT / "results" / "README.md").read_text(encoding="utf-8").partition("## Tracked runs")[0]
    bare = re.sub(r"```.*?```|`[^`\n]*`|\]\([^)]*\)", "", INTERVAL.sub("", answers), flags=re.DOTALL)
    assert not re.findall(r"[\d,]*\d,\d{3}|\d*\.\d{2,}", bare)


@pytest.mark.parametrize("section", ["One result", "How fast is it?"], ids=["a table", "linked through another page"])
def test_a_page_that_differs_from_its_table_is_named(section):
    page, text = "README.md", (ROOT / "README.md").read_text(encoding="utf-8")
    quotes = (match[0] for match in INTERVAL.finditer(text.partition(f"## {section}")[2]))
    said = next(quote for quote in quotes if text.count(quote) == 1)
    line = text[: text.index(said)].count("\n") + 1
    # a digit more than any table has
    wrong = f"9{said}"
    with pytest.raises(UnknownQuoteError) as error:
        written(ROOT, {page: text.replace(said, wrong)})
    assert (
        str(error.value).startswith(f"{page}#") and f"line {line}: " in str(error.value) and wrong in str(error.value)
    )


CELLS = """run,verification,speedup,speedup_low,speedup_high,acceptance_rate,acceptance_rate_low,acceptance_rate_high
a,strict,1.0949,1.004,1.194,0.125,0.1,0.151
b,block,1.0912,0.996,1.185,0.5,0.4,0.6
"""
REPORT = """- command: `rejection-lab run drafter=eagle`

| comparison | acceptance length | difference (%) |
| --- | --- | --- |
| block − strict | 2.00 [1.90, 2.10] | +12.5 [+10.0, +15.1] |

| git.commit | 0123456789abcdef0123456789abcdef01234567 |
| gpu.name | NVIDIA H100 |
"""
PAGE = """# Found

Block is 1.09 [1.00, 1.19] times as fast ([report](results/one/report.md)), and a difference is +12.5 [+10.0, +15.1].

# Elsewhere

12.5 % [10.0, 15.1] are accepted ([found](#found)).

# Not measured here

3.00 [2.00, 4.00]
"""


def test_a_quote_is_a_number_of_a_linked_table_by_its_digits_and_words(tmp_path):
    """Would catch a row of another method with these digits, a share for a difference, and a lost source."""
    (tmp_path / "results" / "one" / "tables").mkdir(parents=True)
    (tmp_path / "results" / "one" / "tables" / "cells.csv").write_text(CELLS)
    (tmp_path / "results" / "one" / "report.md").write_text(REPORT)
    (tmp_path / "page.md").write_text(PAGE)
    origin = "rejection-lab run drafter=eagle,0123456789abcdef0123456789abcdef01234567,NVIDIA H100"
    assert written(tmp_path).index.splitlines()[1:] == [
        f"block − strict,12.5,10,15.1,%,difference (%),results/one/report.md,5,{origin},page.md#found",
        "verification strict,0.125,0.1,0.151,fraction,acceptance_rate,results/one/tables/cells.csv,2,"
        f"{origin},page.md#elsewhere",
        f"verification block,1.0912,0.996,1.185,ratio,speedup,results/one/tables/cells.csv,3,{origin},page.md#found",
    ]
    with pytest.raises(
        UnknownQuoteError, match=r"page\.md#found, line 3: no table in results/one has 1\.09 \[1\.01, 1\.19\]"
    ):
        written(tmp_path, {"page.md": PAGE.replace("1.00", "1.01")})


NOTES = """# Later

Block is 1.09 [1.00, 1.19] times as fast ([report](report.md)).

# Once

{} of which no table is kept ([how](https://example.org/results/one)).
"""


def test_a_page_that_was_written_by_hand_beside_tables_quotes_these(tmp_path):
    """Would catch notes that are not compared with any table, or with themselves."""
    folder = tmp_path / "results" / "one"
    (folder / "tables").mkdir(parents=True)
    (folder / "tables" / "cells.csv").write_text(CELLS)
    (folder / "report.md").write_text(REPORT)
    notes = "results/one/NOTES.md"
    (tmp_path / notes).write_text(NOTES.format("7.00 [6.00, 8.00]"))
    (row,) = written(tmp_path).index.splitlines()[1:]
    assert row.startswith("verification block,1.0912") and row.endswith(f"{notes}#later")
    (tmp_path / notes).write_text(NOTES.format("7.00 [6.00, 8.00]").replace("1.09", "1.08"))
    with pytest.raises(UnknownQuoteError, match=r"NOTES\.md#later, line 3: no table in results/one has 1\.08"):
        written(tmp_path)
    # other pages may quote what was written by hand
    (tmp_path / notes).write_text(NOTES.format("7.00 [6.00, 8.00]"))
    (tmp_path / "page.md").write_text("# Found\n\n[Once](results/one/NOTES.md#once) 7.00 [6.00, 8.00]\n")
    assert any(row.endswith("page.md#found") for row in written(tmp_path).index.splitlines())


SPEEDS = """run,verification,temperature,speedup,speedup_low,speedup_high,acceptance_rate,acceptance_rate_low,\
acceptance_rate_high,disturbed
a,strict,1,{strict},1.004,1.194,0.125,0.1,0.151,{strict_disturbed}
a,block,1,1.0912,0.996,1.185,{block},busy
"""
SHOWN = """# Found

See the [run](results/one/tables/cells.csv). †: disturbed.

| method | speedup | accepted (%) | gained |
|---|---|---|---|
| strict | {strict} | 12.5 [10.0, 15.1] | – |
| block | 1.09 [1.00, 1.18]† | {block} | {gained} |
"""
GAINED = "| comparison | gained |\n| --- | --- |\n| block − strict | {} |\n"


def test_a_table_that_was_measured_anew_is_written_into_the_page(tmp_path, capsys):
    """Would catch the number of another row, a share without its factor, a lost sign, and a mark that outlives what it
    tells of."""
    folder = tmp_path / "results" / "one"
    (folder / "tables").mkdir(parents=True)
    table, page = folder / "tables" / "cells.csv", tmp_path / "page.md"
    table.write_text(SPEEDS.format(strict=1.0949, strict_disturbed="drift", block="0.5,0.4,0.6"))
    (folder / "report.md").write_text(f"# block\n\n{GAINED.format('-0.35 [-0.50, -0.18]')}")
    shown = {"strict": "1.09 [1.00, 1.19]†", "block": "50.0 [40.0, 60.0]", "gained": "-0.35 [-0.50, -0.18]"}
    page.write_text(SHOWN.format(**shown))
    assert main([], tmp_path) == 0 and main(["--check"], tmp_path) == 0 and page.read_text() == SHOWN.format(**shown)
    table.write_text(SPEEDS.format(strict=1234.5678, strict_disturbed="", block="0.125,0.1,0.151"))
    (folder / "report.md").write_text(f"# block\n\n{GAINED.format('+0.20 [-0.10, +0.50]')}")
    assert main(["--check"], tmp_path) == 1 and page.read_text() == SHOWN.format(**shown)
    assert "page.md, line 7: 1.09 1.00 1.19" in capsys.readouterr().out
    assert main([], tmp_path) == 0 and main(["--check"], tmp_path) == 0
    shown = {"strict": "1,234.57 [1.00, 1.19]", "block": "12.5 [10.0, 15.1]", "gained": "+0.20 [-0.10, +0.50]"}
    assert page.read_text() == SHOWN.format(**shown)
