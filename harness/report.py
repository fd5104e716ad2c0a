"""Writes the report of a run: tables, figures and one page that holds them with settings and provenance.

Reads records only, needs neither torch nor a GPU. This module knows files; what the numbers mean is elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.boundary_table import boundary_table
from harness.comparison import comparisons_frame
from harness.console import print_summary
from harness.definitions import dictionary
from harness.metrics import Cell, analyse, results_frame
from harness.records import write_atomically
from harness.runs import CELLS, Run, read_runs
from harness.tables import (
    Table,
    baseline_name,
    column_name,
    drafter_name,
    method_tables,
    paired_table,
    summary_table,
)

ROW_FORMATS = ("csv", "json", "md")
REPORT = "report.md"
FIGURE_TEXTS = {
    "methods": "Mean acceptance length (full drafts) and speedup of every method",
    "acceptance_by_position": "Unconditional acceptance rate by draft position",
    "by_temperature": "Mean acceptance length (full drafts) and speedup against temperature",
    "by_depth": "Mean acceptance length (full drafts) and speedup against K",
}
OWN_FILES = {
    "tables": re.compile(r"(cells|summary|methods|paired|boundary)\.(csv|md)"),
    "tables/methods": re.compile(r".+-K-\d+-T-\d.*\.csv"),
    "figures": re.compile(rf"({'|'.join(FIGURE_TEXTS)})(_\d+)?\.(png|pdf|svg)"),
}
"""Folder -> names of the files that a report may have written there."""


@dataclass(frozen=True)
class Results:
    """Runs and the cells in them."""

    runs: tuple[Run, ...]
    cells: tuple[Cell, ...]


def read_results(path: Path) -> Results:
    """Read what lies at a path (see `harness.runs.read_runs`); raises ValueError with the path."""
    runs = tuple(read_runs(path))
    return Results(runs, tuple(analyse(runs)))


def write_report(path: Path, output: Path | None = None, formats: Sequence[str] = ("png",)) -> list[Path]:
    """Write tables/, figures/ and report.md of the results at a path.

    Args:
        path: a run folder, a cells folder, one cell file, or a folder of run folders.
        output: folder to write to; None is the run folder, or the folder of runs.
        formats: file types of the figures.

    Returns:
        The files written, the page first.

    Raises:
        ValueError: nothing to report, or a file that is not a record; the message names the path.
    """
    return write_results(read_results(path), default_output(path) if output is None else output, formats)


def report(path: Path, row_format: str | None = None, output: Path | None = None) -> list[Path]:
    """Write the report of a run, and print its summary, or one row per cell, to standard output."""
    results = read_results(path)
    paths = write_results(results, default_output(path) if output is None else output)
    if row_format is None:
        print_summary(results.cells)
    else:
        print(rows(results, row_format), end="")
    return paths


def default_output(path: Path) -> Path:
    """Where a report goes: beside the records it is about."""
    folder = path if path.is_dir() else path.parent
    return folder.parent if folder.name == CELLS else folder


def rows(results: Results, row_format: str) -> str:
    """One row per cell as text: csv and json hold every column of results/README.md, md the summary."""
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
    lines = ["| column | unit | definition |", "| --- | --- | --- |"]
    lines += [f"| `{name}` | {unit} | {text} |" for name, unit, text in dictionary()]
    return "\n".join(lines) + "\n"


def write_results(results: Results, folder: Path, formats: Sequence[str] = ("png",)) -> list[Path]:
    """Write tables, figures and the page to a folder; returns the paths, the page first.

    Files of an earlier report that this one does not have are removed.
    """
    from harness.plots import write_figures

    summary, methods, pairs = summary_table(results.cells), method_tables(results.cells), paired_table(results.cells)
    texts = {
        "tables/cells.csv": rows(results, "csv"),
        "tables/summary.md": summary.to_markdown(),
        "tables/summary.csv": summary.to_csv(),
        "tables/methods.md": "\n".join(table.to_markdown() for table in methods),
        "tables/paired.md": pairs.to_markdown(),
        "tables/paired.csv": comparisons_frame(results.cells).to_csv(index=False, lineterminator="\n"),
    }
    boundary = boundary_table(results.cells)
    if boundary is not None:
        texts |= {"tables/boundary.md": boundary.to_markdown(), "tables/boundary.csv": boundary.to_csv()}
    texts |= _method_files(methods)
    figures = write_figures(results.cells, folder / "figures", formats)
    tables = [summary, *methods, pairs]
    page = "\n".join(_page(results, tables, [item.name for item in figures], boundary))
    texts = {REPORT: page} | texts
    for name, text in texts.items():
        write_atomically(folder / name, text.encode())
    drawn = {item.with_suffix(f".{kind}") for item in figures for kind in formats}
    _remove_stale(folder, {folder / name for name in texts} | drawn)
    return [*(folder / name for name in texts), *figures]


def _remove_stale(folder: Path, written: Collection[Path]) -> None:
    """Remove what an earlier report left in a folder, so that tables and figures are of the same records."""
    for name, own in OWN_FILES.items():
        for path in (folder / name).glob("*"):
            if path not in written and path.is_file() and own.fullmatch(path.name):
                path.unlink()


def _method_files(tables: Sequence[Table]) -> dict[str, str]:
    """A CSV file for each table, numbered where titles are the same."""
    files: dict[str, str] = {}
    for table in tables:
        stem = f"tables/methods/{file_name(table.title)}"
        number = sum(name.startswith((f"{stem}.csv", f"{stem}--")) for name in files)
        files[f"{stem}--{number + 1}.csv" if number else f"{stem}.csv"] = table.to_csv()
    return files


def file_name(title: str) -> str:
    """A title as the name of a file."""
    words = "".join(letter if letter.isalnum() or letter in "._" else " " for letter in title).split()
    return "-".join(words)


def _page(
    results: Results, tables: Sequence[Table], figures: Sequence[str], boundary: Table | None = None
) -> Iterator[str]:
    """The lines of report.md."""
    summary, *methods, pairs = tables
    manifests = [run.manifest for run in results.runs if run.manifest]
    titles = dict.fromkeys(str(item.get("title") or item.get("name") or "") for item in manifests)
    yield f"# {'; '.join(title for title in titles if title) or 'Results'}\n"
    for run in results.runs:
        yield from _run_lines(run)
    yield from _remarks(results)
    yield "\n## All cells\n"
    yield _without_title(summary)
    if boundary is not None:
        yield f"\n## {boundary.title}\n"
        yield _without_title(boundary)
    yield "\n## Figures\n"
    drawn = dict.fromkeys(cell["labels"] for cell in results.cells if cell["labels"] and not cell.is_baseline)
    labels = f" (cells labelled {', '.join(drawn)})" if drawn else ""
    for name in figures:
        text = next((text for stem, text in FIGURE_TEXTS.items() if name.startswith(stem)), name)
        yield f"{text}, with intervals{labels}:\n\n![{text}](figures/{name})\n"
    yield "\n## Methods side by side\n"
    for table in methods:
        yield table.to_markdown(fold_notes=True)
    yield "\n## Paired differences\n"
    yield _without_title(pairs) if pairs.rows else "No two cells of these results can be compared in pairs.\n"
    yield "\n## Settings\n"
    yield from _value_lines([cell.record.config for cell in results.cells])
    yield "\n## Provenance\n"
    yield from _value_lines([cell.record.provenance for cell in results.cells])
    yield "\nColumns of tables/cells.csv: `python -m experiments.report --columns`.\n"


def _without_title(table: Table) -> str:
    return table.to_markdown(fold_notes=True).split("\n", 2)[2]


def _run_lines(run: Run) -> Iterator[str]:
    manifest = run.manifest
    num_cells = manifest.get("num_cells", len(run.cells) + len(run.missing))
    duration_s = sum(cell.wall_s for cell in run.cells)
    yield f"- run `{run.name}`: {len(run.cells)} of {num_cells} cells, {duration_s:.1f} s measured"
    if manifest.get("started"):
        yield f"  - started {manifest['started']}"
    if manifest.get("command"):
        yield f"  - command: `{manifest['command']}`"


def notices(results: Results) -> list[str]:
    """What a reader must know about a report: cells that are missing or were skipped, fallbacks, labels."""
    found = []
    for run in results.runs:
        unfinished = run.manifest.get("num_cells", 0) - len(run.cells)
        if run.missing or unfinished > 0:
            found.append(f"run {run.name} is incomplete: {max(unfinished, len(run.missing))} cells have no record")
        if run.unlisted:
            found.append(f"run {run.name}: {len(run.unlisted)} records that its manifest does not name were left out")
        for item in run.manifest.get("skipped", []):
            found.append(f"skipped {_plain(item.get('cell'))}: {item.get('reason')}")
    without = [cell for cell in results.cells if cell.baseline is None]
    if without:
        found.append(f"{len(without)} cells have no baseline in their run, so no speedup")
    few = [cell for cell in results.cells if cell.estimates.num_prompts < 2]
    if few:
        found.append(f"{len(few)} cells have fewer than 2 prompts, so no intervals")
    num_skipped = sum(cell.record.num_skipped_turns for cell in results.cells)
    if num_skipped:
        found.append(f"{num_skipped} turns were left out because they did not fit (sum over cells)")
    found += _by_cells("fallback", [(text, cell) for cell in results.cells for text in cell.record.fallbacks])
    labelled = [(text, cell) for cell in results.cells for text in cell["labels"].split("; ") if text]
    return found + _by_cells("label", labelled)


def _by_cells(what: str, items: Sequence[tuple[str, Cell]]) -> list[str]:
    """One line per text, with the cells it applies to."""
    names: dict[str, dict[str, None]] = {}
    for text, cell in items:
        name = baseline_name(cell) if cell.is_baseline else f"{drafter_name(cell)} {column_name(cell)}"
        names.setdefault(text, {})[name] = None
    return [f"{what}: {text} ({'; '.join(cells)})" for text, cells in names.items()]


def _remarks(results: Results) -> Iterator[str]:
    found = notices(results)
    if found:
        yield "\n## Remarks\n"
        yield from (f"- {line}" for line in found)


def _value_lines(mappings: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A table of the values, those that differ between cells listed once each."""
    flat = [dict(_flatten(item)) for item in mappings]
    yield "| name | value |\n| --- | --- |"
    for name in dict.fromkeys(name for item in flat for name in item):
        values = list(dict.fromkeys(item.get(name, "") for item in flat))
        text = f"{values[0]} … {values[-1]} ({len(values)} values)" if len(values) > 8 else ", ".join(values)
        yield f"| {name} | {text.replace('|', chr(92) + '|')} |"


def _flatten(mapping: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in mapping.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", _plain(value)


def _plain(value: Any) -> str:
    """A setting as text."""
    if isinstance(value, Mapping):
        return " ".join(f"{name}={_plain(item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_plain(item) for item in value) + "]"
    return (
        {None: "–", True: "true", False: "false"}.get(value, str(value))
        if isinstance(value, bool | None)
        else str(value)
    )
