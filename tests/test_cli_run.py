"""The run command without a model: help, mistakes, the list of cells, interruption, progress."""

import csv
import io
import json
from pathlib import Path

import pytest

from experiments import run as command
from harness.settings.schema import all_settings, group_options
from harness.sweep import whole_run
from tests.own_process import output_of
from tests.synthetic_cells import simulated_run

ROOT = Path(__file__).parents[1]


def test_help_list_and_mistakes_come_without_torch():
    code = (
        "import sys; from experiments.run import main; "
        "assert main(['--help']) == 0; assert not {'torch', 'hydra', 'pandas'} & set(sys.modules); "
        "assert main(['--list', 'drafter=mtp']) == 0; assert main(['drafter=unknown']) == 2; "
        "assert main(['workload.path=nowhere.jsonl']) == 2; "
        "assert not {'torch', 'transformers', 'pandas'} & set(sys.modules)"
    )
    output_of(code)


def test_help_names_every_group_option_and_setting(capsys):
    assert command.main(["--help"]) == 0
    shown = capsys.readouterr().out
    words = set(shown.replace(",", " ").replace("*", " ").replace("=", " ").split())
    for group, options in group_options().items():
        if len(options) > 1:
            assert {group, *options} <= words
    assert set(all_settings()) <= words
    assert max(map(len, shown.splitlines())) <= 120


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["drafter=eagel3"], "no such option (did you mean eagle3?); choices:"),
        (["--formt", "csv"], "unknown option --formt (did you mean --format?)"),
        (["--format", "xml"], "invalid choice: 'xml' (choose from"),
        (["workload.path=nowhere.jsonl"], "found none at 'nowhere.jsonl'"),
        (["quickstart"], "did you mean experiment=quickstart?"),
        (["output.folder=pyproject.toml/x"], "expected a folder that can be made and written to, found"),
        (["output.folder=/dev/null/x"], "(Not a directory)"),
        (["output.folder=/proc/nope/x"], "found '/proc/nope/x' ("),
        (["output.folder=/proc"], "found '/proc' ("),
        ([f"name={'n' * 300}"], "(File name too long)"),
        (
            [
                "drafter=mtp",
                "verification=synthetic",
                "verification.synthetic_rates=[]",
                "verification.synthetic_length=inf",
            ],
            "verification.synthetic_length: expected 1 or more, up to K + 1, found inf",
        ),
        (["verification.delta=nan", "verification=typical", "drafter=mtp"], "delta must be positive and finite"),
        (
            ["drafter=mtp", "drafting.num_speculative_tokens=4,2000"],
            "drafting.num_speculative_tokens: expected 0 to 32, found 2000",
        ),
        (["decoding.top_p=nan"], "decoding.top_p: expected a value in (0, 1]"),
        (
            ["drafter=eagle", "constraint=commit", "constraint.parser=qwen"],
            "constraint.parser: expected one of zoo, qwen3, glm,",
        ),
        (["drafter=eagle", "constraint=mask", "constraint.parser=nowhere:parser"], "No module named 'nowhere'"),
        (["decoding.max_new_tokens=64,1024"], "decoding.max_new_tokens: expected fewer than 1024, the tokens that"),
        (["decoding.max_new_tokens=99", "backend.max_length=99"], "decoding.max_new_tokens: expected fewer than 99"),
        (["--list", "--devices", "0,00"], "expected each device once, found 0 more than once in '0,00'"),
        (["--list", "--devices", "x"], "expected numbers or UUIDs of GPUs with commas between them, such as 0,1 or"),
        (["--list", "--devices", ""], "GPU-1a2b, found ''"),
        (["--list", "--devices", "0,"], "GPU-1a2b, found '0,'"),
        (["backend.device=cuda:x"], "backend.device: expected auto, cpu, cuda or cuda:N, found cuda:x"),
    ],
)
def test_a_mistake_gets_one_line_on_standard_error_and_exit_code_2(arguments, message, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(whole_run, "run_plan", stop(AssertionError("a mistake was seen only after models were loaded")))
    assert command.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_a_name_that_is_too_long_in_a_folder_that_is_not_there_yet_is_a_mistake_too(capsys, tmp_path):
    """Would catch the bare error of the system, and the folders around it left behind."""
    assert command.main(["drafter=mtp", f"output.folder={tmp_path / 'new' / ('n' * 300)}"]) == 2
    assert "output.folder: expected a folder that can be made" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_grammar_that_cannot_be_followed_is_a_mistake_of_the_settings(monkeypatch, capsys):
    """Would catch a bad grammar that is found beside a loaded model, or called a prompt that is too long."""
    pytest.importorskip("llguidance", reason="needs the extra grammar")
    monkeypatch.setattr(whole_run, "run_plan", stop(AssertionError("a mistake was seen only after models were loaded")))
    arguments = ["drafter=eagle", "constraint=commit", "constraint.kind=regex", "constraint.grammar='[0-9'"]
    assert command.main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: constraint.grammar: expected a regex that llguidance can follow, it says: ")
    assert "unclosed character class" in line and "found '[0-9': mend it" in line


@pytest.mark.parametrize(
    ("role", "fields", "arguments", "message"),
    [
        (
            "target",
            {"model_type": "mistral", "vocab_size": 6144},
            ["drafter=ngram"],
            "target.path: expected model_type llama or qwen3 or glm4_moe_lite, found 'mistral' in",
        ),
        (
            "drafter",
            {"vocab_size": 6145},
            ["drafter=eagle"],
            "expected vocab_size 6144, that of target zoo, found 6145",
        ),
        (
            "drafter",
            {"transformer_layer_config": {"vocab_size": 32001}, "draft_vocab_size": 6144},
            ["drafter=eagle3"],
            "expected vocab_size 6144, that of target zoo, found 32001",
        ),
        (
            "drafter",
            {"model_type": "llama", "vocab_size": 32002},
            ["drafter=draft_model"],
            "drafter.path: expected vocab_size 6144, that of target zoo, found 32002",
        ),
    ],
    ids=["model type", "EAGLE", "speculators layout", "draft model"],
)
def test_a_model_that_does_not_fit_is_a_mistake_of_the_settings(
    role, fields, arguments, message, monkeypatch, capsys, tmp_path
):
    """Would catch a folder that is only looked at when the run has begun."""
    (tmp_path / "config.json").write_text(json.dumps(fields))
    monkeypatch.setattr(whole_run, "run_plan", stop(AssertionError("a mistake was seen only after models were loaded")))
    assert command.main([*arguments, f"{role}.path={tmp_path}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line and "config.json" in line


@pytest.mark.parametrize(("role", "arguments"), [("target", ["drafter=ngram"]), ("drafter", ["drafter=eagle3"])])
def test_a_shard_that_is_missing_is_found_before_anything_runs(role, arguments, monkeypatch, capsys, tmp_path):
    """Would catch a folder that was copied in part, found at night when the cell's turn has come."""
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "model-00001-of-00002.safetensors").touch()
    monkeypatch.setattr(whole_run, "run_plan", stop(AssertionError("a mistake was seen only after models were loaded")))
    assert command.main([*arguments, f"{role}.path={tmp_path}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {role}.path: ") and "found no model-00002-of-00002.safetensors;" in line


def test_the_list_shows_what_differs(capsys):
    assert command.main(["--list", "drafter=mtp", "verification=strict,block", "decoding.top_p=0.8,1"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["target", "drafter", "K", "drafts", "T", "verification", "decoding.top_p"]
    assert lines[1] == ["1", "zoo", "none", "-", "-", "1.0", "-", "0.8"]
    assert lines[3] == ["3", "zoo", "mtp", "4", "sampled", "1.0", "strict", "0.8"]
    assert len(lines) == 1 + 2 + 4


def test_the_list_says_what_is_skipped(capsys):
    sweep = ["drafter=mtp,ngram", "verification=strict,pr35461", "invalid_cells=skip"]
    assert command.main(["--list", *sweep]) == 0
    assert "skipped drafter=ngram verification=pr35461: " in capsys.readouterr().err


def test_many_combinations_skipped_for_one_reason_share_a_line(capsys):
    """Would catch hundreds of lines where methods of trees and of chains are swept together, and a lost reason."""
    sweep = ["drafting.tree=null,2-1", "verification=block,recursive", "drafting.num_speculative_tokens=2,3,4"]
    assert command.main(["--list", "drafter=eagle3", "invalid_cells=skip", *sweep]) == 0
    lines = sorted(line for line in capsys.readouterr().err.splitlines() if line.startswith("skipped"))
    assert [line.split(" drafting.")[0] for line in lines] == ["skipped 3 combinations, the first of them"] * 2
    assert "verification=block verifies chains" in lines[0] and "drafting.tree=2-1" in lines[0]
    assert "verification=recursive verifies trees" in lines[1] and "drafting.tree=null" in lines[1]


def finished(folder, error=None):
    """Stands for the sweep: cells are written, and then something may stop it."""

    def run_plan(plan, finished_cells):
        simulated_run(folder, temperatures=(1.0,), methods=("strict", "block"), num_prompts=6)
        finished_cells += json.loads((folder / "run.json").read_text())["cells"]
        if error is not None:
            raise error

    return run_plan


def test_rows_of_every_format_go_to_standard_output(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(whole_run, "run_plan", finished(tmp_path))
    shown = {}
    for row_format in ("csv", "json", "md"):
        assert command.main(["drafter=mtp", f"output.folder={tmp_path}", "--format", row_format]) == 0
        shown[row_format] = capsys.readouterr().out
    rows = list(csv.DictReader(io.StringIO(shown["csv"])))
    assert [row["verification"] for row in rows] == ["", "strict", "block"]
    assert float(rows[1]["acceptance_rate_low"]) <= float(rows[1]["acceptance_rate"])
    from_json = json.loads(shown["json"])
    assert [row["cell_id"] for row in from_json] == [row["cell_id"] for row in rows]
    assert from_json[0]["acceptance_rate"] is None
    table = [line for line in shown["md"].splitlines() if line.startswith("|")]
    assert len(table) == 2 + 3


def test_without_a_format_a_summary_is_printed(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(whole_run, "run_plan", finished(tmp_path))
    assert command.main(["drafter=mtp", f"output.folder={tmp_path}"]) == 0
    captured = capsys.readouterr()
    assert "strict" in captured.out
    assert "results in" in captured.err
    assert list((tmp_path / "tables").iterdir())


@pytest.mark.parametrize(
    ("error", "exit_code", "first", "last"),
    [
        (KeyboardInterrupt(), 130, "interrupted: 3 of 2 cells were finished", "report: "),
        (ValueError("the disk is gone"), 1, "stopped: 3 of 2 cells were finished", "error: the disk is gone"),
        (OSError("no space left"), 1, "stopped: 3 of 2 cells were finished", "error: no space left"),
    ],
    ids=["interruption", "wrong value", "system"],
)
def test_a_run_that_was_stopped_reports_what_was_finished(error, exit_code, first, last, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(whole_run, "run_plan", finished(tmp_path, error))
    assert command.main(["drafter=mtp", f"output.folder={tmp_path}", "--format", "csv"]) == exit_code
    captured = capsys.readouterr()
    assert len(list(csv.DictReader(io.StringIO(captured.out)))) == 3
    lines = captured.err.splitlines()
    assert lines[1].startswith(first)
    assert "finished cells are kept" in lines[1]
    assert lines[-1].startswith(last)


def stop(error):
    def run_plan(plan, finished_cells):
        raise error

    return run_plan


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("the folder holds no weights")])
def test_results_of_an_earlier_run_are_not_reported_as_those_of_a_run_that_was_stopped(
    error, monkeypatch, capsys, tmp_path
):
    simulated_run(tmp_path, temperatures=(1.0,), methods=("strict",), num_prompts=6)
    before = (tmp_path / "run.json").read_bytes()
    monkeypatch.setattr(whole_run, "run_plan", stop(error))
    assert command.main(["drafter=mtp", f"output.folder={tmp_path}", "--format", "csv"]) in (1, 130)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "no cell was finished" in captured.err
    assert "still holds the results of an earlier run" in captured.err
    assert "kept" not in captured.err
    assert not (tmp_path / "report.md").exists()
    assert (tmp_path / "run.json").read_bytes() == before


def test_cells_of_an_earlier_run_in_the_folder_are_not_reported(monkeypatch, capsys, tmp_path):
    earlier = simulated_run(tmp_path, temperatures=(0.0,), methods=("coupled",), num_prompts=6)
    old = json.loads((earlier / "run.json").read_text())["cells"]
    monkeypatch.setattr(whole_run, "run_plan", finished(tmp_path, KeyboardInterrupt()))
    assert command.main(["drafter=mtp", f"output.folder={tmp_path}", "--format", "csv"]) == 130
    shown = {row["cell_id"] for row in csv.DictReader(io.StringIO(capsys.readouterr().out))}
    assert shown == set(json.loads((tmp_path / "run.json").read_text())["cells"])
    assert not shown & set(old)


def test_a_run_stopped_before_its_first_manifest_was_written_does_not_report_the_older_one(
    monkeypatch, capsys, tmp_path
):
    simulated_run(tmp_path, temperatures=(1.0,), methods=("strict",), num_prompts=6)

    def run_plan(plan, finished_cells):
        finished_cells.append("new")
        raise KeyboardInterrupt

    monkeypatch.setattr(whole_run, "run_plan", run_plan)
    assert command.main(["drafter=mtp", f"output.folder={tmp_path}", "--format", "csv"]) == 130
    assert capsys.readouterr().out == ""
    assert not (tmp_path / "report.md").exists()


def test_an_interruption_before_the_first_cell_reports_nothing(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(whole_run, "run_plan", stop(KeyboardInterrupt()))
    assert command.main(["drafter=mtp", f"output.folder={tmp_path / 'new'}"]) == 130
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "interrupted: no cell was finished, nothing to report" in captured.err


def test_what_goes_wrong_in_the_run_is_one_line_or_a_traceback(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(whole_run, "run_plan", stop(ValueError("the folder holds no weights")))
    arguments = ["drafter=mtp", f"output.folder={tmp_path / 'new'}"]
    assert command.main(arguments) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "error: the folder holds no weights"
    with pytest.raises(ValueError, match="no weights"):
        command.main([*arguments, "--debug"])


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), ValueError("the folder holds no weights")], ids=["key", "value"]
)
def test_a_run_that_fails_before_its_first_file_leaves_no_folder(error, monkeypatch, tmp_path):
    """Would catch an empty results folder that looks like a run's."""

    def run_plan(plan, finished_cells):
        (plan.folder / "cells").mkdir()
        raise error

    monkeypatch.setattr(whole_run, "run_plan", run_plan)
    assert command.main(["drafter=mtp", f"output.folder={tmp_path / 'runs' / 'new'}"]) in (1, 130)
    assert not list(tmp_path.iterdir())


def test_a_run_that_fails_removes_nothing_that_was_there_or_that_it_wrote(monkeypatch, tmp_path):
    """Would catch data lost with the folder of a run that failed: a file of its own, and a folder made before it."""
    (tmp_path / "mine" / "notes").mkdir(parents=True)

    def run_plan(plan, finished_cells):
        (plan.folder / "cells").mkdir()
        (plan.folder / "cells" / "terms.npz").write_bytes(b"terms")
        raise ValueError("the disk is full")

    monkeypatch.setattr(whole_run, "run_plan", run_plan)
    assert command.main(["drafter=mtp", f"output.folder={tmp_path / 'new'}"]) == 1
    assert (tmp_path / "new" / "cells" / "terms.npz").read_bytes() == b"terms"
    monkeypatch.setattr(whole_run, "run_plan", stop(KeyboardInterrupt()))
    assert command.main(["drafter=mtp", f"output.folder={tmp_path / 'mine'}"]) == 130
    assert (tmp_path / "mine" / "notes").is_dir()


def test_listing_the_cells_makes_no_folder(tmp_path, capsys):
    assert command.main(["--list", "drafter=mtp", f"output.folder={tmp_path / 'new'}"]) == 0
    assert not (tmp_path / "new").exists()


def test_skipped_combinations_are_named(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(whole_run, "run_plan", stop(KeyboardInterrupt()))
    command.main(
        ["drafter=mtp,ngram", "verification=pr35461", "invalid_cells=skip", f"output.folder={tmp_path / 'new'}"]
    )
    assert "skipped drafter=ngram: verification=pr35461 needs" in capsys.readouterr().err
