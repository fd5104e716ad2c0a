"""`rejection-lab convert`: what it prints and writes of files of several tools."""

import csv
import json
import math
from pathlib import Path

import pytest

from experiments.convert import main
from harness.backends.foreign.formats import FormatKind
from harness.config.cli.ending import SUCCESS, WRONG_SETTINGS

FOREIGN = Path(__file__).parents[1] / "data" / "foreign"
SPECFORGE = str(FOREIGN / "specforge.json")


def given(*names):
    return [str(FOREIGN / name) for name in names]


def test_files_of_several_tools_stand_side_by_side(tmp_path, capsys):
    """The tools' own lengths are 2.95 and 1.81; the columns of the table are ours and agree."""
    assert main([*given("specforge.json", "tensorrt_llm_bench.json"), "--output", str(tmp_path)]) == SUCCESS
    with (tmp_path / "converted.csv").open() as file:
        rows = {(Path(row["file"]).stem, row["column"]): row for row in csv.DictReader(file)}
    lengths = [rows[name, "mean_acceptance_length"] for name in ("specforge", "tensorrt_llm_bench")]
    assert [float(row["value"]) for row in lengths] == pytest.approx([28 / 11] * 2)
    assert {row["basis"] for row in lengths} == {"derived"} and all(row["how"] for row in lengths)
    assert rows["specforge", "acceptance_rate"]["value"] == ""
    content = json.loads((tmp_path / "converted.json").read_text())
    assert [item["told"][0]["values"] for item in content] == [[2.95], [pytest.approx(1.8135, abs=1e-4)]]
    assert content[0]["seen"] is None and set(content[0]["definitions"]) >= {"mean", "bonus token", "last step"}
    printed = capsys.readouterr()
    assert max(map(len, printed.out.splitlines())) <= 100
    page = (tmp_path / "converted.md").read_text()
    assert "not seen run against the program's own output" in page and "not seen run" in " ".join(printed.out.split())
    # above the rows that agree, and of each file
    assert page.count("2.55*") == 3


def test_the_difference_of_two_snapshots_is_one_run(capsys):
    before, after = given("vllm_before.prom", "vllm_after.prom")
    assert main(["--before", before, after]) == SUCCESS
    assert "the server did between them" in " ".join(capsys.readouterr().out.split())


def test_formats_lists_what_is_read_and_what_was_not_seen_run(capsys):
    assert main(["--formats"]) == SUCCESS
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines[::2]] == [kind.value for kind in FormatKind]
    seen = {kind.value for kind, line in zip(FormatKind, lines[1::2], strict=True) if "run against output of" in line}
    assert seen == {kind.value for kind in FormatKind if kind.named.seen} < set(FormatKind.__members__)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param([], "expected FILE", id="no file"),
        pytest.param(
            [str(FOREIGN / "missing.json")], "missing.json: expected a file that can be read, found: No", id="missing"
        ),
        pytest.param([str(FOREIGN / "vllm_after.prom"), "--before", "gone"], "error: gone: expected a", id="no before"),
        pytest.param([SPECFORGE, "--before", SPECFORGE], "pages of counters", id="no page"),
        pytest.param([SPECFORGE, SPECFORGE, "--before", "x"], "one FILE", id="two files"),
        pytest.param([SPECFORGE, "--num-speculative-tokens", "0"], "1 or more", id="no depth"),
        pytest.param([SPECFORGE, "--as", "eagle2"], "--as: expected one of vllm_log", id="name"),
        pytest.param([SPECFORGE, "--as", "vllm_bench"], "expected vllm_bench, results of", id="another format"),
    ],
)
def test_wrong_input_is_one_line(arguments, message, capsys):
    assert main(arguments) == WRONG_SETTINGS
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error


def test_csv_has_no_nan(tmp_path):
    assert main([*given("llama_cpp_answers.jsonl"), "--output", str(tmp_path)]) == SUCCESS
    content = json.loads((tmp_path / "converted.json").read_text(), parse_constant=math.nan.__class__)
    assert content[0]["numbers"]["mean_acceptance_length"]["value"] is None
    assert "nan" not in (tmp_path / "converted.csv").read_text()
