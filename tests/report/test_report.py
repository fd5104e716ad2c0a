"""The report of a run and its command: files, formats, errors, and what the command must not import."""

import csv
import io
import json
import re
from dataclasses import replace

import pandas as pd
import pytest

from experiments import report as command
from harness.analysis.cell import analyse
from harness.analysis.columns import column_names
from harness.analysis.definitions import metric
from harness.analysis.frame import load_results
from harness.analysis.results import read_results
from harness.records.files import write_cell
from harness.records.runs import read_runs
from harness.records.schema import Failure
from harness.report.blocks import blocks
from harness.report.cell_names import DISTURBED
from harness.report.console import WIDTH, print_summary
from harness.report.first_screen import LEGEND
from harness.report.tables.by_position import differences_table
from harness.report.verdicts import sentences
from harness.report.warnings import warnings
from harness.report.write import column_dictionary, default_output, own_files, write_results
from tests.support.own_process import output_of
from tests.support.synthetic_cells import (
    analysed,
    baseline_settings,
    cell_record,
    config,
    request_record,
    round_record,
    shortened_cell,
    simulated_cell,
    simulated_run,
)

LENGTH = re.compile(r"(?:mean )?(?<!expected )acceptance lengths?(?:\W+\w+){0,3}", re.IGNORECASE)


def write_report(path, output=None, formats=("png",)):
    """The files of a report, beside its records unless told otherwise."""
    return write_results(read_results(path), default_output(path) if output is None else output, formats)


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report") / "run"
    return simulated_run(folder, drafters=("eagle", "eagle3"), num_prompts=6)


@pytest.fixture(scope="module")
def written(run_folder, tmp_path_factory):
    """The files of the report of `run_folder`, its page first."""
    return write_report(run_folder, tmp_path_factory.mktemp("written"))


@pytest.fixture
def small_folder(tmp_path):
    """A run whose report takes little time."""
    return simulated_run(tmp_path / "runs" / "small", temperatures=(1.0,), methods=("strict",), num_prompts=2)


def test_report_writes_tables_figures_and_a_page_that_links_them(run_folder, written):
    folder = written[0].parent
    assert written[0] == folder / "report.md" and all(path.stat().st_size for path in written)
    names = {path.relative_to(folder).as_posix() for path in written}
    assert {"tables/cells.csv", "tables/paired.csv", "tables/summary.md", "figures/methods.png"} <= names
    assert "tables/methods/zoo-eagle3-K-3-T-1.csv" in names
    page = written[0].read_text()
    for name in names:
        if name.startswith("figures/"):
            assert f"]({name})" in page
    assert "# A simulated run" in page and "skipped drafter=ngram verification=pr35461: ngram has no" in page
    settings = (folder / "tables" / "settings.md").read_text()
    assert "| decoding.temperature | 0.0, 1.0 |" in settings and "| libraries.numpy |" in settings
    assert all((folder / link).is_file() for link in re.findall(r"\]\(([^)]+)\)", page))
    assert len(page.splitlines()) < 200 and str(folder) not in page and str(run_folder) not in page


def test_a_length_has_one_name_everywhere(run_folder, written):
    """Would catch two columns of one page that are headed alike and defined otherwise."""
    folder = written[0].parent
    texts = {path.name: path.read_text() for path in written if path.suffix in (".md", ".csv", ".tex")}
    told = [(name, found) for name, text in texts.items() for found in LENGTH.findall(" ".join(text.split()))]
    labels = [metric(name).label for name in ("mean_acceptance_length", "full_draft_length")]
    assert {found[: len(labels[1])].lower() for _, found in told if "mean" not in found.lower()} == {labels[1]}
    assert {name for name, _ in told} >= {"report.md", "summary.md", "methods.md", "methods.tex"}
    assert labels[1] in " ".join(printed(analyse(read_runs(run_folder))))
    first, whole = (text.splitlines() for text in (texts["report.md"], (folder / "tables" / "summary.md").read_text()))
    header = next(line for line in first if line.startswith("| method |"))
    assert f"| {labels[1]} |" in header and labels[0] not in header
    assert any(f"| {labels[0]} | {labels[1]} |" in line for line in whole)


def test_table_of_cells_holds_every_digit(run_folder, written):
    """Would catch rounding in the file that notebooks and spreadsheets start from."""
    loaded = load_results(run_folder)
    with (written[0].parent / "tables/cells.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    for name in ("tpot_mean_ms", "output_tokens_per_s_low", "speedup_high"):
        assert [float(row[name]) for row in rows] == list(loaded[name])


def test_report_goes_beside_its_records_in_every_format_that_is_asked_for(small_folder):
    for path in write_report(small_folder / "cells", None, ("png", "pdf")):
        assert path.suffix != ".png" or path.with_suffix(".pdf").is_file()
    assert (small_folder / "report.md").is_file() and (small_folder / "figures" / "methods.pdf").is_file()
    assert len(list((small_folder / "cells").iterdir())) == 2
    runs = small_folder.parent
    assert default_output(runs) == runs


def test_a_page_of_one_cell_has_no_empty_table_of_pairs(tmp_path):
    write_cell(cell_record([request_record([round_record(4, 2, 1.0)])]), tmp_path / "cells")
    write_results(read_results(tmp_path), tmp_path / "report", html=True)
    page, whole = ((tmp_path / "report" / name).read_text() for name in ("report.md", "report.html"))
    assert "No two cells of these results can be compared in pairs." in whole
    assert "comparison" not in page


def test_a_run_is_found_by_its_name(small_folder, tmp_path, monkeypatch, capsys):
    """Would catch a name that `status` takes and `report` does not."""
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "runs").symlink_to(small_folder.parent, target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    assert command.main([small_folder.name, "--format", "csv"]) == 0
    by_name = capsys.readouterr().out
    assert command.main([str(small_folder), "--format", "csv"]) == 0
    assert by_name == capsys.readouterr().out != ""


def test_report_prints_the_summary_or_the_rows(small_folder, tmp_path, capsys):
    assert command.main([str(small_folder), "--output", str(tmp_path / "report")]) == 0
    assert "target zoo" in (shown := capsys.readouterr().out) and "eagle3 · K = 3 · T = 1" in shown
    assert command.main([str(small_folder), "--format", "csv"]) == 0
    assert capsys.readouterr().out.startswith("run,cell_id,target,")


def printed(cells):
    """What a terminal shows, in lines."""
    stream = io.StringIO()
    print_summary(cells, stream)
    return stream.getvalue().splitlines()


def test_summary_fits_a_terminal_and_shows_intervals(run_folder):
    """Would catch lines that wrap at 100 columns, and brackets swallowed as markup."""
    cells = analyse(read_runs(run_folder))
    lines = printed(cells)
    assert max(map(len, lines)) <= WIDTH
    cell = next(item for item in cells if item["verification"] == "block" and item["temperature"] == 1)
    value, low, high = cell.estimate("full_draft_length")
    line = next(item for item in lines[lines.index("eagle · K = 3 · T = 1") :] if item.startswith("block "))
    assert f"{value:.2f} [{low:.2f}, {high:.2f}]" in line


def test_summary_shows_the_length_of_full_drafts():
    """Would catch a length that shortened drafts pull down beside an expectation that is over full drafts only."""
    records = shortened_cell("strict", (1, 2, 3)), shortened_cell("block", (2, 3, 4))
    cells = analysed(*records)
    assert [cell.estimate("mean_acceptance_length").value for cell in cells] == [2.0, 2.5]
    lines = printed(cells)
    (line,) = (item for item in lines if item.startswith("strict "))
    text = " ".join(" ".join(lines).split())
    assert " 3.00 [" in line and "of full drafts 4.00 [3.00, 5.00] (over rounds" in text, text
    assert "on the same drafts block is expected to keep +1.000 [+1.000, +1.000] drafts a round more" in text


def test_a_cell_that_failed_early_is_a_row_among_those_it_was_to_be_compared_with():
    """Would catch a block of its own for a cell whose backend had not found out its settings, and a mark that nothing
    explains."""
    baseline = simulated_cell(baseline_settings(), (), num_prompts=6)
    strict = simulated_cell(config(verification__method="strict"), (0.6, 0.5, 0.4), num_prompts=6)
    settings = config(verification__method="block")
    settings["backend"] = {**settings["backend"], "fused": None, "dtype": "auto"}
    failed = cell_record((), 0.0, {**settings, "dtype": "auto"}, failures=(Failure("RuntimeError", "no memory"),))
    cells = analysed(baseline, strict, failed)
    vars(cells[1])["drift"] = 0.3
    lines = printed(cells)
    start = next(place for place, line in enumerate(lines) if line.startswith("no drafts"))
    assert lines[start + 1].startswith("strict ") and lines[start + 1].endswith(DISTURBED)
    assert lines[start + 2].startswith("block [failed] ") and not lines[start + 3]
    assert LEGEND in " ".join(" ".join(lines[:start]).split())
    # a baseline that failed is the first row of those that it leaves without a speedup
    lines = printed(analysed(replace(failed, config={**baseline.config, "dtype": "auto"}), strict))
    rows = [place for place, line in enumerate(lines) if line.startswith(("no drafts [failed] ", "strict "))]
    assert len(rows) == 2 and rows[1] == rows[0] + 1


def test_a_time_without_variation_has_no_interval_in_the_summary():
    requests = [request_record([round_record(0, 0, 0.1), round_record(3, 1, 0.2)], prompt) for prompt in "ab"]
    (line,) = (item for item in printed(analysed(cell_record(requests))) if item.startswith("probabilistic "))
    assert " 6.00 [n/a]" in line and "2.00 [2.00, 2.00]" in line


def test_a_report_leaves_nothing_of_an_earlier_one_behind(tmp_path):
    """Would catch a sweep's tables and figures beside the page of a smaller run, and files of others removed."""
    large = simulated_run(tmp_path / "large", depths=(1, 3), methods=("strict", "block"), num_prompts=2)
    small = simulated_run(tmp_path / "small", temperatures=(1.0,), methods=("strict",), num_prompts=2)
    output = tmp_path / "output"
    earlier = set(write_report(large, output, ("png", "pdf")))
    others = [
        output / name for name in ("notes.md", "tables/notes.csv", "tables/methods/mine.csv", "figures/by_hand.png")
    ]
    for path in others:
        path.write_text("kept")
    written = set(write_report(small, output))
    left = {path for path in output.rglob("*") if path.is_file()}
    assert left == written | set(others) and earlier - left
    names = {path.name for path in left}
    assert "by_depth.png" not in names and "methods.pdf" not in names and "zoo-eagle3-K-1-T-1.csv" not in names


def test_every_file_of_a_report_is_known_as_its_own(written):
    """Would catch a file that is written under a name by which it is never removed."""
    for path in written[1:]:
        assert own_files()[path.parent.relative_to(written[0].parent).as_posix()].fullmatch(path.name)


def test_summary_says_where_methods_coincide(run_folder):
    block = [cell for cell in analyse(read_runs(run_folder)) if (cell["drafter"], cell["temperature"]) == ("eagle", 0)]
    (found,) = blocks(block)
    (first, _) = sentences(found)
    assert (
        all(method in first for method in ("strict", "probabilistic", "block")) and differences_table(found, "") is None
    )


def test_notices_name_what_a_reader_must_know(tmp_path):
    """Would catch a fallback, a label, a missing cell or a missing baseline that the report does not mention."""
    requests = [request_record([round_record(0, 0, 0.1), round_record(3, 1, 0.2)])]
    settings = config(target__weights="random", verification__method="lenient", verification__leniency=0.5)
    cell = cell_record(requests, 1.0, settings, fallbacks=("no chat template",), num_skipped_turns=2)
    write_cell(cell, tmp_path / "cells")
    (tmp_path / "run.json").write_text(json.dumps({"cells": [cell.cell_id, "gone"], "num_cells": 3}))
    found = "\n".join(warnings(read_results(tmp_path)))
    assert "is incomplete: 2 cells have no record" in found
    assert "1 cells have no baseline" in found and "fewer than 2 prompts" in found
    assert "2 turns were left out" in found
    assert "fallback: no chat template (eagle3 lenient(leniency=0.5), sampled drafts [" in found
    assert "label: target weights: random" in found


@pytest.mark.parametrize("row_format", ["csv", "json", "md"])
def test_rows_go_to_standard_output_and_nothing_is_written(run_folder, row_format, capsys):
    before = sorted(run_folder.rglob("*"))
    assert command.main([str(run_folder), "--format", row_format]) == 0
    captured = capsys.readouterr()
    assert captured.err == "" and sorted(run_folder.rglob("*")) == before
    frame = load_results(run_folder)
    if row_format == "csv":
        assert list(pd.read_csv(io.StringIO(captured.out)).columns) == column_names(3)
    elif row_format == "json":
        data = json.loads(captured.out)
        assert len(data) == len(frame) and data[0]["acceptance_rate"] is None
        assert data[1]["acceptance_rate"] == pytest.approx(frame["acceptance_rate"][1], rel=1e-12)
    else:
        assert captured.out.count("\n| ") == 2 + len(frame)


def test_output_takes_the_rows(run_folder, tmp_path, capsys):
    assert command.main([str(run_folder), "--format", "csv", "--output", str(tmp_path / "new" / "cells.csv")]) == 0
    assert capsys.readouterr().out == ""
    assert len(pd.read_csv(tmp_path / "new" / "cells.csv")) == len(load_results(run_folder))


def test_columns_are_printed(capsys):
    assert command.main(["--columns"]) == 0
    assert capsys.readouterr().out == column_dictionary()


@pytest.mark.parametrize("content", ["missing", "empty", "corrupt"])
def test_errors_are_one_line_with_exit_code_2(tmp_path, content, capsys):
    """Would catch a traceback where a path was mistyped or a file was damaged."""
    folder = tmp_path / "run"
    if content != "missing":
        (folder / "cells").mkdir(parents=True)
    if content == "corrupt":
        (folder / "cells" / "x.json.gz").write_bytes(b"zip")
    assert command.main([str(folder)]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("error: ") and captured.err.count("\n") == 1
    assert str(folder) in captured.err


def loaded_modules(*arguments):
    """The top-level modules that the command imports, in a process of its own."""
    script = (
        "import sys; from experiments.report import main\n"
        f"main({list(arguments)!r})\n"
        "print('\\n' + ' '.join({name.split('.')[0] for name in sys.modules}))"
    )
    return set(output_of(script).splitlines()[-1].split())


def test_report_needs_no_torch_and_rows_need_no_matplotlib(small_folder, tmp_path):
    """Would catch an import that makes the report slow, or impossible on a laptop without torch."""
    heavy = {"torch", "transformers", "hydra", "omegaconf", "datasets"}
    assert not loaded_modules(str(small_folder), "--output", str(tmp_path / "report")) & heavy
    assert not loaded_modules(str(small_folder), "--format", "csv") & (heavy | {"matplotlib", "rich"})
    assert not loaded_modules("--help") & (heavy | {"pandas", "numpy", "matplotlib", "rich"})


def test_the_report_lists_no_setting_that_no_cell_uses(tmp_path):
    """Would catch the defaults of the baseline, and of methods that were not run, among the settings of a run."""
    folder = simulated_run(tmp_path / "run", temperatures=(1.0,), methods=("strict",), num_prompts=4)
    write_results(read_results(folder), tmp_path / "pages", html=True)
    html, markdown = ((tmp_path / "pages" / name).read_text() for name in ("report.html", "tables/settings.md"))
    assert "| drafting.num_speculative_tokens | 3 |" in markdown and "| drafter.kind | none, eagle3 |" in markdown
    for name in ("verification.epsilon", "drafter.ngram_max", "workload.split", "constraint.parser"):
        assert name not in markdown and name not in html
    names = [line.split(" | ")[0] for line in markdown.partition("## Settings")[2].splitlines()]
    start = names.index("| drafter.kind")
    assert names[start + 1] == "| drafter.path", "the drafter's settings stand together"
    for page in (markdown, html):
        assert "Settings that no cell uses are left out" in page
