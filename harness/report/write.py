"""Writes the report of a run: tables, figures and the page that holds them with settings and provenance.

Reads records only, needs neither torch nor a GPU. This module knows files; what the numbers mean is elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from harness.analysis.columns import dictionary
from harness.analysis.frame import results_frame
from harness.analysis.results import Results
from harness.records.files import write_atomically
from harness.records.runs import CELLS, REPORT
from harness.report.figures.kinds import figure_kinds
from harness.report.files import write_files
from harness.report.page import SETTINGS_FILE, run_page, settings_page, whole_report
from harness.report.run_comparison import RunComparison, read_two_runs
from harness.report.sections import make_tables, own_tables, table_files
from harness.report.table import Table
from harness.report.tables.lossy import distances
from harness.report.tables.summary import summary_table

ROW_FORMATS = ("csv", "json", "md")
HTML_REPORT = "report.html"
COMPARISON = "comparison.html"


def default_output(path: Path) -> Path:
    """Where a report goes: beside the records it is about."""
    folder = path if path.is_dir() else path.parent
    return folder.parent if folder.name == CELLS else folder


def rows(results: Results, row_format: str) -> str:
    """One row per cell as text: csv and json hold every column of harness/analysis/COLUMNS.md, md the summary."""
    if row_format == "md":
        return summary_table(results.cells).to_markdown()
    frame = results_frame(results.cells)
    if row_format == "csv":
        return frame.to_csv(index=False, lineterminator="\n")
    if row_format == "json":
        return frame.to_json(orient="records", indent=1, double_precision=15) + "\n"
    raise ValueError(f"format: expected one of {', '.join(ROW_FORMATS)}, found {row_format}")


def column_dictionary() -> str:
    """The columns of the rows with unit and definition, as a Markdown table."""
    rows = tuple((f"`{name}`", unit, text) for name, unit, text in dictionary())
    return Table("", ("column", "unit", "definition"), rows).to_markdown(title=False).rstrip() + "\n"


def write_results(
    results: Results, folder: Path, formats: Sequence[str] = ("png",), *, html: bool = False
) -> list[Path]:
    """Write tables, figures and the page to a folder; returns the paths, the page first.

    Files of an earlier report that this one does not have are removed.

    Args:
        html: write the page as HTML too, and name that one first.
    """
    from harness.report.figures.write import write_figures

    made = make_tables(results)
    drawn_cells = [cell for cell in results.cells if not cell.record.has_failed]
    figures = write_figures(drawn_cells, folder / "figures", formats, distances(results))
    texts = {REPORT: run_page(results, made, figures).to_markdown(folder)}
    if html:
        from harness.report.html.page import html_page

        texts = {HTML_REPORT: html_page(whole_report(results, made, figures))} | texts
    texts |= {SETTINGS_FILE: settings_page(results).to_markdown(), "tables/cells.csv": rows(results, "csv")}
    for item in made:
        texts |= table_files(item, results)
    written = write_files(folder, texts)
    paths = [figure.path for figure in figures]
    drawn = {path.with_suffix(f".{kind}") for path in paths for kind in formats}
    _remove_stale(folder, {*written, *drawn})
    return [*written, *paths]


def write_comparison(first: Path, second: Path, output: Path) -> tuple[Path, RunComparison]:
    """Write one page of HTML about two runs and their differences.

    Args:
        first, second: run folders, cells folders or cell files.
        output: the page, if it ends in .html, or the folder that it goes to.

    Returns:
        Its path and the comparison, whose warnings say why cells or differences are missing, and what to do.

    Raises:
        ValueError: as `harness.report.run_comparison.read_two_runs`.
    """
    from harness.report.figures.write import write_figures
    from harness.report.html.page import html_page

    results, comparison = read_two_runs(first, second)
    page = output if output.suffix == ".html" else output / COMPARISON
    with TemporaryDirectory() as folder:
        figures = write_figures(results.cells, Path(folder), distances=distances(results))
        text = html_page(whole_report(results, make_tables(results), figures, comparison))
    write_atomically(page, text.encode())
    return page, comparison


def own_files() -> dict[str, re.Pattern[str]]:
    """Folder -> names of the files that a report may have written there."""
    names = "|".join(kind.name for kind in figure_kinds())
    return {
        ".": re.compile(re.escape(HTML_REPORT)),
        **own_tables(),
        "figures": re.compile(rf"({names})(_\d+)?\.(png|pdf|svg)"),
    }


def _remove_stale(folder: Path, written: Collection[Path]) -> None:
    """Remove what an earlier report left in a folder, so that tables and figures are of the same records."""
    for name, own in own_files().items():
        for path in (folder / name).glob("*"):
            if path not in written and path.is_file() and own.fullmatch(path.name):
                path.unlink()
